-- Did my change at step N make anything faster?
--
-- Put the step into `change`; as written, the query compares the last ten sampled steps with all steps before them.
-- Times are per call, so the number of steps on each side does not matter. Ranks are listed separately, because they
-- may sample unequal numbers of steps. A module that occurs on one side only has NULL on the other.

WITH change AS (
  SELECT MIN(last) - 9 AS at_step
  FROM (SELECT MAX(step) AS last FROM python.torch_trace GROUP BY rank)
)
SELECT rank, module, stage,
       COUNT(*) FILTER (step < at_step) AS calls_before,
       COUNT(*) FILTER (step >= at_step) AS calls_after,
       AVG(duration) FILTER (step < at_step) * 1e3 AS before_ms,
       AVG(duration) FILTER (step >= at_step) * 1e3 AS after_ms,
       100 * (after_ms / before_ms - 1) AS more_pct
FROM python.torch_trace, change
GROUP BY rank, module, stage
ORDER BY ABS(after_ms - before_ms) DESC NULLS LAST
LIMIT 10
