-- Which module is slow?
--
-- `ms_a_step` is what the module itself takes per step, without the modules that it calls, so `pct` adds up to 100 over
-- all rows (the query shows the first ten). Stage `comm` is no module: a collective of that group blocked the thread,
-- which waits for gradients, say. The backward of a DDP root is everything else that no module below it did: the loss,
-- and hooks.

SELECT module, stage, COUNT(*) AS calls,
       SUM(duration) * 1e3 / (SELECT COUNT(DISTINCT (rank, step)) FROM python.torch_trace) AS ms_a_step,
       100 * SUM(duration) / SUM(SUM(duration)) OVER () AS pct
FROM python.torch_trace
GROUP BY module, stage
ORDER BY pct DESC
LIMIT 10
