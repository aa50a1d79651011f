-- How long does each optimizer take?
--
-- `ms_a_step` is averaged over all sampled steps, so an optimizer that steps only occasionally has a low value.
-- Optimizers of one class share one name.

SELECT module AS optimizer, COUNT(*) AS calls, COUNT(*) / COUNT(DISTINCT (rank, step)) AS calls_a_step,
       AVG(duration) * 1e3 AS ms_a_call, MAX(duration) * 1e3 AS max_ms,
       SUM(duration) * 1e3 / (SELECT COUNT(DISTINCT (rank, step)) FROM python.torch_trace) AS ms_a_step
FROM python.torch_trace
WHERE stage = 'step'
GROUP BY module
ORDER BY ms_a_step DESC
