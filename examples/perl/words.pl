#!/usr/bin/perl
# Perl with DBD::SQLite. Debian's uses libsqlite3; one from CPAN brings a SQLite of its own. This works with both.
#
# Look out: a URI is given as "uri=", not "dbname=".
use strict;
use warnings;
use DBI;

die "usage: words.pl LIBRARY POOL\n" unless @ARGV == 2;
my ($library, $pool) = @ARGV;

my $loader = DBI->connect("dbi:SQLite:dbname=:memory:", "", "", { RaiseError => 1 });
$loader->sqlite_enable_load_extension(1);
$loader->sqlite_load_extension($library);
$loader->disconnect;

my $db = DBI->connect("dbi:SQLite:uri=file:$pool?vfs=hardpack", "", "", { RaiseError => 1 });
$db->do("INSERT INTO words VALUES(?, ?)", undef, "perl", 1);
my ($count) = $db->selectrow_array("SELECT count(*) FROM words");
print "$count words\n";
$db->disconnect;
