-- How much do steps vary?
--
-- `cv_pct` is the standard deviation divided by the mean. A p99 far above p50 means a few bad steps; a p95 far above
-- p50 means that the loop has two kinds of steps. All steps count here, sampled or not, except those in which an eval
-- held the job.

SELECT rank, COUNT(duration) AS steps, AVG(duration) * 1e3 AS avg_ms, STDDEV(duration) * 1e3 AS stddev_ms,
       100 * STDDEV(duration) / AVG(duration) AS cv_pct,
       QUANTILE_CONT(duration, 0.50) * 1e3 AS p50_ms,
       QUANTILE_CONT(duration, 0.95) * 1e3 AS p95_ms,
       QUANTILE_CONT(duration, 0.99) * 1e3 AS p99_ms,
       MAX(duration) * 1e3 AS max_ms
FROM python.step_trace
WHERE COALESCE(eval_duration, 0) = 0
GROUP BY rank
ORDER BY rank
