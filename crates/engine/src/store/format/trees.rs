//! The trees of a pool, by their number on disk.

/// Names, attributes and properties of files and directories.
pub const NAMES: u8 = 0;
/// Records, by file and offset.
pub const MAP: u8 = 1;
/// Patches, by file and offset.
pub const PATCHES: u8 = 2;
/// Free runs that may be used.
pub const SPACE: u8 = 3;
/// Free runs that may be used once the txg that freed them is durable.
pub const FREED: u8 = 4;
/// Reference counts of shared extents.
pub const REFS: u8 = 5;
/// Dictionaries, by number.
pub const DICTIONARIES: u8 = 6;
/// The roots of the others, for a search without superblocks.
pub const ROOTS: u8 = 7;
/// What only snapshots reach.
pub const DEAD: u8 = 8;
/// Snapshots, by number.
pub const SNAPSHOTS: u8 = 9;
/// Where content is that may be shared: sorted runs, by content.
pub const INDEX: u8 = 10;
/// The trees in use, with names for messages.
pub const ALL: [(u8, &str); 11] = [
    (NAMES, "names"),
    (MAP, "map"),
    (PATCHES, "patches"),
    (SPACE, "space"),
    (FREED, "freed"),
    (REFS, "refs"),
    (DICTIONARIES, "dictionaries"),
    (ROOTS, "roots"),
    (DEAD, "dead"),
    (SNAPSHOTS, "snapshots"),
    (INDEX, "index"),
];
/// Those whose values are pointers to extents of their own.
pub const OF_POINTERS: [u8; 4] = [MAP, PATCHES, DICTIONARIES, INDEX];
/// Those that a snapshot keeps.
pub const OF_SNAPSHOTS: [u8; 4] = [NAMES, MAP, PATCHES, DICTIONARIES];
