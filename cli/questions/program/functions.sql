-- Which Python functions does the time go into?
--
-- After `probe 4242 profile`, which has looked at the stacks of all threads a hundred times a second. `function` is the
-- innermost one of the job's own code: time in the libraries that it calls is its own. A thread that waits has rows,
-- too.

SELECT rank, thread_name, function, parse_filename(file) AS file, SUM(seconds) AS self_s,
       100 * AVG(holds_gil::INT) AS holds_gil_pct
FROM python.profile
GROUP BY ALL
ORDER BY self_s DESC
LIMIT 8
