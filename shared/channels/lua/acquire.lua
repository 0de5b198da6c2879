-- Take the lead if nobody has it.
-- KEYS  1 leader  2 counter
-- ARGV  1 this attempt's random token  2 lease in ms
-- Returns the fence `counter:token`, or "" while another leads. A repeat returns the same fence.
local held = redis.call('GET', KEYS[1])
if held then
  if string.match(held, ':(.*)$') == ARGV[1] then return held end
  return ''
end
-- A write that a full server allows comes first, so that the lead can change hands there too.
redis.call('PERSIST', KEYS[2])
local fence = redis.call('INCR', KEYS[2]) .. ':' .. ARGV[1]
redis.call('SET', KEYS[1], fence, 'PX', ARGV[2])
return fence
