-- Ask an engine what it holds. The question is an entry of its batch stream, so the answer comes
-- after every descriptor that was dispatched before.
-- KEYS  1 leader  2 batches
-- ARGV  1 fence
-- Returns FENCED, GONE or the question's iteration number.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'FENCED' end
local info = redis.pcall('XINFO', 'STREAM', KEYS[2])
if info.err then return 'GONE' end
local number
for i = 1, #info, 2 do
  if info[i] == 'last-generated-id' then number = tonumber(string.match(info[i + 1], '^%d+')) + 1 end
end
local question = {version = VERSION, kind = 'batch', iteration = number, fence = ARGV[1], report = true}
redis.call('XADD', KEYS[2], number .. '-0', 'm', cjson.encode(question))
return number
