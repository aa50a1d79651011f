-- Which modules take uneven times?
--
-- Percentiles of the self time of a call. A high `p99_ms` over a low `p50_ms` means inputs of very different sizes, a
-- recompile, or a core taken away by other work, which shows in all modules alike.

SELECT module, stage, COUNT(duration) AS calls,
       QUANTILE_CONT(duration, 0.50) * 1e3 AS p50_ms,
       QUANTILE_CONT(duration, 0.95) * 1e3 AS p95_ms,
       QUANTILE_CONT(duration, 0.99) * 1e3 AS p99_ms,
       p99_ms / p50_ms AS times
FROM python.torch_trace
GROUP BY module, stage
HAVING COUNT(duration) >= 20
ORDER BY p99_ms - p50_ms DESC
LIMIT 10
