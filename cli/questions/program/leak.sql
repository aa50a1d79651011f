-- Does memory grow?
--
-- `mb_per_1000_steps` is the slope of a line through all readings of the process's memory. An `r2` near 1 means that
-- memory grows steadily: a leak. For device memory, use `max_allocated` of `python.torch_trace`. Loader workers are
-- separate processes and are not included.

SELECT rank, COUNT(*) AS readings, MIN(step) AS first_step, MAX(step) AS last_step,
       ARG_MIN(rss_mb, step) AS first_mb, ARG_MAX(rss_mb, step) AS last_mb,
       1000 * REGR_SLOPE(rss_mb, step) AS mb_per_1000_steps, REGR_R2(rss_mb, step) AS r2
FROM python.step_trace
WHERE rss_mb IS NOT NULL
GROUP BY rank
ORDER BY rank
