-- Where does the main thread of each rank stand?
--
-- The innermost frames at the moment of the query, innermost first. Run it a few times: what shows again and again is
-- where the time goes. `probe 4242 stack` shows all threads.

SELECT rank, STRING_AGG(function || ':' || line, ' < ' ORDER BY depth) AS stack
FROM python.stack
WHERE is_main AND depth < 3
GROUP BY rank
ORDER BY rank
