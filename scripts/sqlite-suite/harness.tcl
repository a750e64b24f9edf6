# Runs one file of SQLite's tests with Hardpack as the default VFS:
#
#     testfixture harness.tcl TESTFILE [argument ...]
#
# It changes three things, all outside SQLite's source:
#
# 1. A test's operations on the bytes of a database file go to the database in the pool: `file size`, `open`,
#    `hexio_read`, `hexio_write` and `md5file` of a file that is a pool go through the VFS (`pool_bytes`).
#    Files that are not pools, such as write-ahead logs and journals, are untouched.
# 2. A case listed in omit.txt is run, since later cases need its effects, but its result does not count. A pattern
#    that matches no failing case is reported: a reason must not outlive the failure that it explains.
# 3. The file is run command by command, and a command that fails outside a case fails as `line-N`. So a test that
#    looks for a journal in the middle of a file does not hide later failures.
#
# HARDPACK_SUITE_OMIT holds the patterns for this file, in Tcl's list syntax. Without HARDPACK_SUITE_LIBRARY nothing
# changes.

set argv0 [lindex $argv 0]
set argv [lrange $argv 1 end]

namespace eval suite {
  variable omit [expr {[info exists ::env(HARDPACK_SUITE_OMIT)] ? $::env(HARDPACK_SUITE_OMIT) : {}}]
  variable used [dict create]
  variable channels [dict create]
}

# Returns the size of the database if the file is a pool, otherwise that of the file.
proc suite::file_size {path} {
  if {[pool_bytes is $path]} {return [pool_bytes size $path]}
  return [::tcl::file::size $path]
}

# SQLite's own commands leak their buffer if the file does not exist; that leak must not be reported here.
proc suite::hexio_read {path offset len} {
  if {![file exists $path]} {error "cannot open input file $path"}
  if {![pool_bytes is $path]} {return [suite::plain_hexio_read $path $offset $len]}
  return [string toupper [binary encode hex [pool_bytes read $path $offset $len]]]
}

proc suite::hexio_write {path offset hex} {
  if {![file exists $path]} {error "cannot open output file $path"}
  if {![pool_bytes is $path]} {return [suite::plain_hexio_write $path $offset $hex]}
  set bytes [binary decode hex $hex]
  pool_bytes write $path $offset $bytes
  return [string length $bytes]
}

# Redefines md5file and similar commands: for a pool they read its database.
proc suite::wrap_md5 {name} {
  rename ::$name ::suite::plain_$name
  proc ::$name {path args} [format {
    if {![pool_bytes is $path]} {return [suite::plain_%1$s $path {*}$args]}
    set copy $path-suite-copy
    set out [suite::plain_open $copy wb]
    puts -nonewline $out [pool_bytes read $path 0 [pool_bytes size $path]]
    close $out
    set sum [suite::plain_%1$s $copy {*}$args]
    file delete $copy
    return $sum
  } $name]
}

# `open` of a pool, except to empty it, returns a channel to its database.
proc suite::open_file {path args} {
  set mode [lindex $args 0]
  if {[string index $path 0] eq "|" || [string match w* $mode] || "TRUNC" in $mode || ![pool_bytes is $path]} {
    return [uplevel 1 [list suite::plain_open $path {*}$args]]
  }
  set writes [expr {[string match *+* $mode] || "RDWR" in $mode || "WRONLY" in $mode || [string match a* $mode]}]
  # A test that opens files until no descriptors are left must be able to finish.
  set descriptor [suite::plain_open $path r]
  set channel [chan create [expr {$writes ? {read write} : {read}}] suite::channel]
  dict set suite::channels $channel descriptor $descriptor
  dict set suite::channels $channel path [file normalize $path]
  dict set suite::channels $channel at [expr {[string match a* $mode] ? [pool_bytes size $path] : 0}]
  if {[string match *b* $mode] || "BINARY" in $mode} {fconfigure $channel -translation binary}
  return $channel
}

# The handler of such a channel, as described in refchan(n).
proc suite::channel {what channel args} {
  variable channels
  switch -- $what {
    initialize {return {initialize finalize watch read write seek}}
    finalize {
      close [dict get $channels $channel descriptor]
      dict unset channels $channel
      return
    }
    watch {return}
  }
  set path [dict get $channels $channel path]
  set at [dict get $channels $channel at]
  switch -- $what {
    read {
      set bytes [pool_bytes read $path $at [lindex $args 0]]
      dict set channels $channel at [expr {$at + [string length $bytes]}]
      return $bytes
    }
    write {
      set bytes [lindex $args 0]
      pool_bytes write $path $at $bytes
      dict set channels $channel at [expr {$at + [string length $bytes]}]
      return [string length $bytes]
    }
    seek {
      lassign $args offset base
      switch -- $base {
        current {incr offset $at}
        end {incr offset [pool_bytes size $path]}
      }
      dict set channels $channel at $offset
      return $offset
    }
  }
}

# Tcl cannot truncate channels of this kind.
proc suite::truncate_channel {channel args} {
  variable channels
  if {![dict exists $channels $channel]} {return [::tcl::chan::truncate $channel {*}$args]}
  pool_bytes truncate [dict get $channels $channel path] [lindex $args 0]
}

# Handles a failed case: it counts unless it is on the list.
proc suite::fail_test {name} {
  variable omit
  variable used
  foreach pattern $omit {
    if {[string match $pattern $name]} {
      dict set used $pattern 1
      output2 "suite: omitted $name"
      return
    }
  }
  suite::plain_fail_test $name
}

# Reports, at the end, the patterns that matched no case.
proc suite::finalize_testing {} {
  variable omit
  variable used
  foreach pattern $omit {
    if {![dict exists $used $pattern]} {output2 "suite: unused $pattern"}
  }
  suite::plain_finalize_testing
}

# Replaces a command by a procedure of this namespace; the command stays available as plain_NAME.
proc suite::replace {name} {
  rename ::$name ::suite::plain_$name
  interp alias {} ::$name {} ::suite::$name
}

# Replaces procedures of tester.tcl, once it has been read.
proc suite::tester_is_ready {} {
  if {[info commands ::suite::plain_fail_test] ne ""} return
  replace fail_test
  replace finalize_testing
}

proc suite::source_file {args} {
  set result [uplevel 1 [list suite::plain_source {*}$args]]
  if {[file tail [lindex $args end]] eq "tester.tcl"} suite::tester_is_ready
  return $result
}

if {[info exists env(HARDPACK_SUITE_LIBRARY)]} {
  namespace ensemble configure ::file -map \
      [dict replace [namespace ensemble configure ::file -map] size ::suite::file_size]
  namespace ensemble configure ::chan -map \
      [dict replace [namespace ensemble configure ::chan -map] truncate ::suite::truncate_channel]
  suite::replace hexio_read
  suite::replace hexio_write
  rename ::open ::suite::plain_open
  interp alias {} ::open {} ::suite::open_file
  suite::wrap_md5 md5file
  suite::wrap_md5 md5file-10x8
  rename ::source ::suite::plain_source
  interp alias {} ::source {} ::suite::source_file
}

# Runs a test file in parts, each of which is one command at the outermost level.
proc suite::run_file {path} {
  set in [plain_open $path]
  set text [read $in]
  close $in
  info script $path
  set command ""
  set number 0
  set from 1
  foreach line [split $text \n] {
    incr number
    append command $line \n
    if {![info complete $command]} continue
    set code [catch {uplevel #0 $command} result options]
    if {$code == 2} return
    if {$code != 0} {
      output2 "! line-$from error: [dict get $options -errorinfo]"
      fail_test line-$from
    }
    set command ""
    set from [expr {$number + 1}]
  }
  if {[string trim $command] ne ""} {error "$path ends in the middle of a command"}
}

if {[info exists env(HARDPACK_SUITE_LIBRARY)]} {
  suite::run_file $argv0
} else {
  source $argv0
}
