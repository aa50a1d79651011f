-- How long do requests take, and how long do they wait before?
--
-- After `probe 4242 trace server:serve --since arrived`: any function of the job, sync or async, on any thread. The
-- output is a server's whose requests wait in a queue. Service is the function itself; `waiting` is NULL without
-- `--since`.

SELECT rank, function, COUNT(*) AS calls, COUNT(*) FILTER (WHERE failed) AS failed,
       quantile_cont(duration, 0.5) * 1e3 AS service_p50_ms,
       quantile_cont(duration, 0.9) * 1e3 AS service_p90_ms,
       quantile_cont(duration, 0.99) * 1e3 AS service_p99_ms,
       quantile_cont(queued, 0.5) * 1e3 AS waiting_p50_ms,
       quantile_cont(queued, 0.99) * 1e3 AS waiting_p99_ms
FROM python.call_trace
GROUP BY rank, function
ORDER BY rank, function
