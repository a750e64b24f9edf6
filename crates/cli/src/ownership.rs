//! Owners as people write them: `user`, `user:group`, `:group`, by name or number.

use hardpack_engine::pool::FileOwner;

use crate::sys;

/// The number by which the system is told to leave an owner as it is: `(uid_t)-1`. A file with
/// this owner could never be restored.
const NO_CHANGE: u32 = u32::MAX;

/// What to change about an owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ownership {
    uid: Option<u32>,
    gid: Option<u32>,
}

impl Ownership {
    /// Parses the operand of `chown`.
    pub fn parse(text: &str) -> Result<Ownership, String> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let known = match user {
            "" => None,
            name => Some(find_user(name)?),
        };
        let gid = match (group, known) {
            (Some(""), Some((_, Some(login)))) => Some(login),
            (Some(""), Some((_, None))) => return Err(format!("'{user}' has no login group")),
            (Some("") | None, None) => return Err("name a user, a group, or both".into()),
            (Some(name), _) => Some(find_group(name)?),
            (None, Some(_)) => None,
        };
        Ok(Ownership { uid: known.map(|(uid, _)| uid), gid })
    }

    /// Returns the owner after the change. `own` stands in where nothing is known.
    pub fn applied_to(self, owner: Option<FileOwner>, own: FileOwner) -> FileOwner {
        let owner = owner.unwrap_or(own);
        FileOwner { uid: self.uid.unwrap_or(owner.uid), gid: self.gid.unwrap_or(owner.gid) }
    }
}

/// A name comes before a number, as POSIX requires.
fn find_user(text: &str) -> Result<(u32, Option<u32>), String> {
    if let Some((uid, gid)) = sys::user(text) {
        return Ok((uid, Some(gid)));
    }
    Ok((number(text, "user")?, None))
}

fn find_group(text: &str) -> Result<u32, String> {
    match sys::group(text) {
        Some(gid) => Ok(gid),
        None => number(text, "group"),
    }
}

fn number(text: &str, what: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(NO_CHANGE) => Err(format!(
            "no {what} can have the number {NO_CHANGE}, which stands for \"no change\""
        )),
        Ok(number) => Ok(number),
        Err(_) => Err(format!("there is no {what} '{text}'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_by_name_and_number() {
        let own = FileOwner { uid: 1, gid: 2 };
        let after = |text: &str| {
            let change = Ownership::parse(text).unwrap();
            let FileOwner { uid, gid } = change.applied_to(Some(FileOwner { uid: 7, gid: 8 }), own);
            (uid, gid)
        };
        assert_eq!(after("root"), (0, 8));
        assert_eq!(after("root:"), (0, 0));
        assert_eq!(after(":root"), (7, 0));
        assert_eq!(after("12345:54321"), (12345, 54321));
        let unknown = Ownership::parse(":5").unwrap();
        assert_eq!(unknown.applied_to(None, own), FileOwner { uid: 1, gid: 5 });
        for wrong in ["", ":", "no such user", "root:no such group", "-1", "4294967296", "12345:"] {
            assert!(Ownership::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(after("4294967294:4294967294"), (u32::MAX - 1, u32::MAX - 1));
        for (wrong, what) in
            [("4294967295", "user"), (":4294967295", "group"), ("0:4294967295", "group")]
        {
            let error = Ownership::parse(wrong).unwrap_err();
            assert!(error.starts_with(&format!("no {what} can have the number 4294967295")));
        }
    }
}
