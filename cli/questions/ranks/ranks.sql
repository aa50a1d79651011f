-- How do the ranks compare, module by module?
--
-- The mean self time of a call, with one column for each rank. If one module is slower on one rank, its input differs;
-- if all modules are slower on one rank, its machine does.

PIVOT (
  SELECT module, stage, 'rank_' || rank AS who, duration * 1e3 AS ms,
         AVG(duration) OVER (PARTITION BY module, stage) * 1e3 AS all_ranks
  FROM python.torch_trace
  WHERE depth >= 2
)
ON who
USING AVG(ms)
GROUP BY module, stage, all_ranks
ORDER BY all_ranks DESC
LIMIT 10
