//! Access control lists of POSIX, in the form of the extended attributes `system.posix_acl_access`
//! and `system.posix_acl_default`:
//!
//! ```text
//! version u32 (2), then for each entry: tag u16, permissions u16, id u32        little-endian
//!
//! 0x01 owner   0x02 a user (id)   0x04 group   0x08 a group (id)   0x10 mask   0x20 others
//! ```
//!
//! Entries come in the order of their tags. Owner, group and others appear once, and so does the
//! mask if there are entries of users or groups; without such entries it may be missing. The mask
//! limits what users, groups and the group of the file may do, and stands in the mode for the
//! permissions of the group. Other ids than those of users and groups mean nothing, and are written
//! as 0xffffffff.
//!
//! The kernel decides by these lists who may do what. The server keeps them in step with the mode,
//! as `acl(5)` and the withdrawn standard POSIX.1e (draft 17) describe.

/// The extended attribute of the list that decides about a file.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The extended attribute of the list that new files in a directory get.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const FRONT_LEN: usize = 4;
const ENTRY_LEN: usize = 8;
/// The id of an entry that has none.
const NO_ID: u32 = u32::MAX;
/// Read, write and execute.
const ALL: u32 = 7;
/// The bits of a mode that a list decides about.
pub const PERMISSIONS: u32 = 0o777;

const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OF_FILE: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: u16,
    permissions: u32,
    id: u32,
}

/// A list that is well-formed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl(Vec<Entry>);

impl Acl {
    /// Decodes a list; `None` if it is not well-formed.
    pub fn parse(bytes: &[u8]) -> Option<Acl> {
        let (version, rest) = bytes.split_first_chunk::<FRONT_LEN>()?;
        let (entries, rest) = rest.as_chunks::<ENTRY_LEN>();
        if u32::from_le_bytes(*version) != VERSION || !rest.is_empty() {
            return None;
        }
        let entries = entries.iter().map(|[t0, t1, p0, p1, id @ ..]| {
            let tag = u16::from_le_bytes([*t0, *t1]);
            let id = u32::from_le_bytes(*id);
            Entry {
                tag,
                permissions: u16::from_le_bytes([*p0, *p1]).into(),
                id: if tag == USER || tag == GROUP { id } else { NO_ID },
            }
        });
        let acl = Acl(entries.collect());
        acl.is_sound().then_some(acl)
    }

    fn is_sound(&self) -> bool {
        let count = |tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let has_names = count(USER) + count(GROUP) > 0;
        let is_known = |entry: &Entry| {
            let has_id = entry.tag == USER || entry.tag == GROUP;
            matches!(entry.tag, OWNER | USER | GROUP_OF_FILE | GROUP | MASK | OTHERS)
                && entry.permissions <= ALL
                && (entry.id == NO_ID) != has_id
        };
        self.0.iter().all(is_known)
            && self.0.is_sorted_by_key(|entry| entry.tag)
            && [OWNER, GROUP_OF_FILE, OTHERS].into_iter().all(|tag| count(tag) == 1)
            && (count(MASK) == 1 || count(MASK) == 0 && !has_names)
    }

    /// Encodes the list.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for Entry { tag, permissions, id } in &self.0 {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&(*permissions as u16).to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    /// Whether the permission bits of a mode say the same.
    pub fn is_plain(&self) -> bool {
        self.0.len() == 3
    }

    /// Whether the permissions of a mode's group are those of the mask.
    fn has_mask(&self) -> bool {
        self.0.iter().any(|entry| entry.tag == MASK)
    }

    /// The entries that stand in a mode, each with the position of its lowest bit there.
    fn in_mode(&mut self) -> impl Iterator<Item = (&mut u32, u32)> {
        let group = if self.has_mask() { MASK } else { GROUP_OF_FILE };
        self.0.iter_mut().filter_map(move |entry| match entry.tag {
            OWNER => Some((&mut entry.permissions, 6)),
            OTHERS => Some((&mut entry.permissions, 0)),
            tag if tag == group => Some((&mut entry.permissions, 3)),
            _ => None,
        })
    }

    /// The permission bits that a file with this list has.
    pub fn mode(&self) -> u32 {
        self.clone().in_mode().map(|(permissions, shift)| *permissions << shift).sum()
    }

    /// Takes over the permission bits of a mode, as `chmod` does.
    pub fn follow(&mut self, mode: u32) {
        for (permissions, shift) in self.in_mode() {
            *permissions = mode >> shift & ALL;
        }
    }

    /// Returns the list of a new file that inherits this one, and its permission bits: what both
    /// the list and the wanted mode grant.
    pub fn inherited(&self, mode: u32) -> (Acl, u32) {
        let mut new = self.clone();
        for (permissions, shift) in new.in_mode() {
            *permissions &= mode >> shift;
        }
        let mode = new.mode();
        (new, mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(of: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for (tag, permissions, id) in of {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&permissions.to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    const FULL: [(u16, u16, u32); 6] = [
        (OWNER, 7, NO_ID),
        (USER, 6, 1000),
        (GROUP_OF_FILE, 5, NO_ID),
        (GROUP, 7, 50),
        (MASK, 6, NO_ID),
        (OTHERS, 4, NO_ID),
    ];
    const PLAIN: [(u16, u16, u32); 3] =
        [(OWNER, 6, NO_ID), (GROUP_OF_FILE, 4, NO_ID), (OTHERS, 0, NO_ID)];

    fn parsed(of: &[(u16, u16, u32)]) -> Acl {
        Acl::parse(&entries(of)).expect("it is well-formed")
    }

    #[test]
    fn lists_come_back_as_they_were() {
        for of in [&FULL[..], &PLAIN] {
            assert_eq!(parsed(of).encode(), entries(of));
        }
        // What means nothing is not kept.
        let with_ids = PLAIN.map(|(tag, permissions, _)| (tag, permissions, 0));
        assert_eq!(parsed(&with_ids).encode(), entries(&PLAIN));
    }

    #[test]
    fn what_is_not_well_formed_is_refused() {
        let bytes = entries(&FULL);
        for len in 0..bytes.len() {
            assert_eq!(Acl::parse(&bytes[..len]), None, "{len} bytes");
        }
        assert_eq!(Acl::parse(&[&bytes[..], &[0]].concat()), None);
        assert_eq!(Acl::parse(&[&1_u32.to_le_bytes(), &bytes[FRONT_LEN..]].concat()), None);
        for index in 0..FULL.len() {
            let without = [&FULL[..index], &FULL[index + 1..]].concat();
            let is_optional = matches!(FULL[index].0, USER | GROUP);
            assert_eq!(Acl::parse(&entries(&without)).is_some(), is_optional, "without {index}");
            let twice = [&FULL[..=index], &FULL[index..]].concat();
            assert_eq!(Acl::parse(&entries(&twice)).is_some(), is_optional, "{index} twice");
            for (permissions, id) in [(8, 7), (7, NO_ID)] {
                let mut wrong = FULL;
                wrong[index] = (FULL[index].0, permissions, id);
                let is_right = permissions < 8 && !is_optional;
                assert_eq!(Acl::parse(&entries(&wrong)).is_some(), is_right, "{:?}", wrong[index]);
            }
        }
        let mut order = FULL;
        order.swap(1, 3);
        assert_eq!(Acl::parse(&entries(&order)), None);
        let unknown = [&PLAIN[..], &[(0x40, 0, NO_ID)]].concat();
        assert_eq!(Acl::parse(&entries(&unknown)), None);
    }

    #[test]
    fn the_mask_stands_for_the_group() {
        assert_eq!(parsed(&FULL).mode(), 0o764);
        assert_eq!(parsed(&PLAIN).mode(), 0o640);
        assert!(parsed(&PLAIN).is_plain() && !parsed(&FULL).is_plain());
        let with_mask = [&PLAIN[..2], &[(MASK, 7, NO_ID)], &PLAIN[2..]].concat();
        assert!(!parsed(&with_mask).is_plain());

        let mut acl = parsed(&FULL);
        acl.follow(0o4123);
        let mut expected = FULL;
        (expected[0].1, expected[4].1, expected[5].1) = (1, 2, 3);
        assert_eq!(acl.encode(), entries(&expected));
        let mut plain = parsed(&PLAIN);
        plain.follow(0o751);
        assert_eq!(plain.mode(), 0o751);
    }

    #[test]
    fn new_files_get_what_both_sides_grant() {
        let (acl, mode) = parsed(&FULL).inherited(0o666);
        let mut expected = FULL;
        expected[0].1 = 6;
        assert_eq!((acl.encode(), mode), (entries(&expected), 0o664));
        let (acl, mode) = parsed(&FULL).inherited(0o700);
        expected = FULL;
        (expected[4].1, expected[5].1) = (0, 0);
        assert_eq!((acl.encode(), mode), (entries(&expected), 0o700));
        let (acl, mode) = parsed(&PLAIN).inherited(0o777);
        assert!(acl.is_plain());
        assert_eq!(mode, 0o640);
    }
}
