-- Is a block slow itself, or is it what it calls?
--
-- A `self_pct` near 100 means that the module does the work itself; near 0, it only passes the work on. The `total_ms`
-- of a module is contained in its parent's: compare totals, but never add them up.

SELECT module, module_type, AVG(duration) * 1e3 AS self_ms, AVG(total_duration) * 1e3 AS total_ms,
       ROUND(100 * SUM(duration) / SUM(total_duration), 1) AS self_pct
FROM python.torch_trace
WHERE stage = 'forward' AND NOT recompute AND duration IS NOT NULL
GROUP BY module, module_type
ORDER BY total_ms DESC
LIMIT 10
