-- Which steps are outliers, and do they come at regular distances?
--
-- A step counts as an outlier if it takes more than twice the median of the fifty steps before it. If
-- `steps_since_last` is constant, the loop does something on purpose: here, a checkpoint every sixteenth step.

WITH judged AS (
  SELECT rank, step, duration, MEDIAN(duration) OVER before AS usual
  FROM python.step_trace
  WHERE duration IS NOT NULL
  WINDOW before AS (PARTITION BY rank ORDER BY step ROWS BETWEEN 50 PRECEDING AND 1 PRECEDING)
)
SELECT rank, step, duration * 1e3 AS ms, usual * 1e3 AS usual_ms, duration / usual AS times,
       step - LAG(step) OVER (PARTITION BY rank ORDER BY step) AS steps_since_last
FROM judged
WHERE duration > 2 * usual
ORDER BY step DESC, rank
LIMIT 10
