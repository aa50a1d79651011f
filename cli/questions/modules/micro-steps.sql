-- What does each micro step of gradient accumulation cost?
--
-- Only the last micro step has to wait for the gradients of other ranks, so its `comm_ms` is the longest, above all on
-- a rank that is early. If all are as long as the last one, `no_sync()` is missing. What checkpointing recomputes
-- during backward counts as backward.

SELECT rank, micro_step, COUNT(DISTINCT step) AS steps,
       SUM(duration) FILTER (stage = 'forward' AND NOT recompute) * 1e3 / COUNT(DISTINCT step) AS forward_ms,
       SUM(duration) FILTER (stage = 'backward' OR recompute) * 1e3 / COUNT(DISTINCT step) AS backward_ms,
       SUM(duration) FILTER (stage = 'comm') * 1e3 / COUNT(DISTINCT step) AS comm_ms
FROM python.torch_trace
WHERE stage <> 'step'
GROUP BY rank, micro_step
HAVING forward_ms > 0
ORDER BY rank, micro_step
