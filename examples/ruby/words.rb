# Ruby with the gem sqlite3. Debian's uses libsqlite3; a gem that was built elsewhere may bring a SQLite of its own. This
# works with both.
#
# Look out: the VFS is the third argument, after the options; names need not be URIs.
require "sqlite3"

abort "usage: words.rb LIBRARY POOL" unless ARGV.length == 2
library, pool = ARGV

loader = SQLite3::Database.new(":memory:")
loader.enable_load_extension(true)
loader.load_extension(library)
loader.close

db = SQLite3::Database.new(pool, {}, "hardpack")
db.execute("INSERT INTO words VALUES(?, ?)", ["ruby", 1])
puts "#{db.get_first_value("SELECT count(*) FROM words")} words"
db.close
