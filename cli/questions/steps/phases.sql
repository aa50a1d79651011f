-- What fraction of a step waits for data, and where does the rest go?
--
-- The shares of a rank add up to 100. If `data_pct` is high, the loader is too slow. If `comm_pct` is high, this rank
-- waits for others: look at the rank with the lowest. `other_pct` is all Python between the phases: logging,
-- checkpoints, metrics.

SELECT rank, COUNT(*) AS steps, AVG(duration) * 1e3 AS step_ms,
       100 * SUM(data_duration) / SUM(duration) AS data_pct,
       100 * SUM(forward_duration) / SUM(duration) AS forward_pct,
       100 * SUM(backward_duration) / SUM(duration) AS backward_pct,
       100 * SUM(validation_duration) / SUM(duration) AS validation_pct,
       100 * SUM(optimizer_duration) / SUM(duration) AS optimizer_pct,
       100 * SUM(COALESCE(comm_duration, 0)) / SUM(duration) AS comm_pct,
       100 * SUM(eval_duration + other_duration) / SUM(duration) AS other_pct
FROM python.step_trace
WHERE sampled AND other_duration IS NOT NULL
GROUP BY rank
ORDER BY rank
