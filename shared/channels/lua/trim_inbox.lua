-- Drop inbox entries that the leader has read.
-- KEYS  1 leader  2 inbox
-- ARGV  1 fence  2 the first entry to keep
-- Returns FENCED or the number of dropped entries.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'FENCED' end
return redis.call('XTRIM', KEYS[2], 'MINID', ARGV[2])
