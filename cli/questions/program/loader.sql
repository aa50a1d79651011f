-- Does the loader run dry?
--
-- `none_ready_pct` is how often no batch was ready. Near 100, the workers cannot keep up: use more of them, or cheaper
-- examples. Near 0 with long waits, the time goes to what the job itself does with a batch, such as pinning it. Without
-- workers the value is NULL, and each wait is the time it took to make the batch.

SELECT rank, loader, num_workers, COUNT(*) AS batches, AVG(wait_duration) * 1e3 AS avg_ms,
       QUANTILE_CONT(wait_duration, 0.95) * 1e3 AS p95_ms,
       100 * AVG((ready = 0)::INTEGER) AS none_ready_pct, AVG(outstanding) AS outstanding
FROM python.dataloader_trace
WHERE NOT failed
GROUP BY ALL
ORDER BY avg_ms DESC
