//! Permissions as `chmod` takes them: octal, or changes such as `u+x,go-w`.

const MODE_MAX: u32 = 0o7777;
const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const STICKY: u32 = 0o1000;

/// New permissions, or changes of the old ones.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mode {
    Exactly(u32),
    Changes(Vec<Change>),
}

/// One clause, such as `go-w`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// The classes it is about, as bits: 4 for the user, 2 for the group, 1 for others; 0 if none
    /// is named, which means all, less what the umask takes away.
    classes: u32,
    action: Action,
    /// The permissions of one class: `rwx` as bits.
    three: u32,
    /// `X`: execution, for directories and what anybody may execute already.
    conditional: bool,
    /// `s` and `t`.
    set_id: bool,
    sticky: bool,
    /// The class whose permissions are copied, as in `g=u`.
    copied: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Add,
    Remove,
    Set,
}

impl Mode {
    /// Parses the operand of `chmod`.
    pub fn parse(text: &str) -> Result<Mode, String> {
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= MODE_MAX);
            return mode.map(Mode::Exactly).ok_or_else(|| "use an octal number up to 7777".into());
        }
        let mut changes = Vec::new();
        for clause in text.split(',') {
            parse_clause(clause, &mut changes)
                .ok_or("use an octal number, or changes such as u+x, go-w or a=rX")?;
        }
        Ok(Mode::Changes(changes))
    }

    /// Returns the permissions after the change.
    pub fn applied_to(&self, mode: u32, is_directory: bool, umask: u32) -> u32 {
        match self {
            Mode::Exactly(mode) => *mode,
            Mode::Changes(changes) => changes
                .iter()
                .fold(mode, |mode, change| change.applied_to(mode, is_directory, umask)),
        }
    }
}

/// Appends the changes of a clause; there are several in `u+r-w`.
fn parse_clause(clause: &str, changes: &mut Vec<Change>) -> Option<()> {
    let start = clause.find(['+', '-', '='])?;
    let mut classes = 0;
    for letter in clause[..start].chars() {
        classes |= match letter {
            'a' => 7,
            letter => class(letter)?,
        };
    }
    let mut rest = &clause[start..];
    while let Some(action) = rest.chars().next() {
        let action = match action {
            '+' => Action::Add,
            '-' => Action::Remove,
            '=' => Action::Set,
            _ => return None,
        };
        let end = rest[1..].find(['+', '-', '=']).map_or(rest.len(), |end| end + 1);
        changes.push(parse_change(classes, action, &rest[1..end])?);
        rest = &rest[end..];
    }
    Some(())
}

fn parse_change(classes: u32, action: Action, letters: &str) -> Option<Change> {
    let (set_id, sticky) = (letters.contains('s'), letters.contains('t'));
    let conditional = letters.contains('X');
    let mut change =
        Change { classes, action, three: 0, conditional, set_id, sticky, copied: None };
    let mut chars = letters.chars();
    if let (Some(one), None) = (chars.next().and_then(class), chars.next()) {
        change.copied = Some(one);
        return Some(change);
    }
    for letter in letters.chars() {
        change.three |= match letter {
            'r' => 4,
            'w' => 2,
            'x' => 1,
            'X' | 's' | 't' => 0,
            _ => return None,
        };
    }
    Some(change)
}

fn class(letter: char) -> Option<u32> {
    match letter {
        'u' => Some(4),
        'g' => Some(2),
        'o' => Some(1),
        _ => None,
    }
}

/// The bits of three permissions, for these classes.
fn spread(classes: u32, three: u32) -> u32 {
    [4, 2, 1].iter().fold(0, |bits, class| {
        let shift = shift_of(*class);
        if classes & class != 0 { bits | three << shift } else { bits }
    })
}

fn shift_of(class: u32) -> u32 {
    match class {
        4 => 6,
        2 => 3,
        _ => 0,
    }
}

impl Change {
    fn applied_to(self, mode: u32, is_directory: bool, umask: u32) -> u32 {
        let (classes, kept) = if self.classes == 0 { (7, umask) } else { (self.classes, 0) };
        let mut three = match self.copied {
            Some(class) => mode >> shift_of(class) & 7,
            None => self.three,
        };
        if self.conditional && (is_directory || mode & 0o111 != 0) {
            three |= 1;
        }
        let mut bits = spread(classes, three) & !kept;
        let special = |class, bit| if classes & class != 0 { bit } else { 0 };
        let ids = special(4, SET_USER_ID) | special(2, SET_GROUP_ID);
        if self.set_id {
            bits |= ids;
        }
        if self.sticky {
            bits |= STICKY;
        }
        match self.action {
            Action::Add => mode | bits,
            Action::Remove => mode & !bits,
            Action::Set => {
                // A directory keeps its set-id bits unless they are named, as with GNU chmod.
                let cleared = if is_directory { 0 } else { ids };
                let sticky = if self.classes == 7 && !is_directory { STICKY } else { 0 };
                mode & !(spread(classes, 7) & !kept | cleared | sticky) | bits
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_change_as_with_chmod() {
        let cases: [(&str, u32, bool, u32); 20] = [
            ("640", 0o777, false, 0o640),
            ("4755", 0, false, 0o4755),
            ("u+x", 0o644, false, 0o744),
            ("+x", 0o644, false, 0o755),
            ("+w", 0o444, false, 0o644),
            ("a+w", 0o444, false, 0o666),
            ("go-rwx", 0o755, false, 0o700),
            ("a=r", 0o755, false, 0o444),
            ("u=rwX,go=rX", 0o600, false, 0o644),
            ("u=rwX,go=rX", 0o600, true, 0o755),
            ("a+X", 0o700, false, 0o711),
            ("g=u", 0o740, false, 0o770),
            ("o=", 0o777, false, 0o770),
            ("u+s", 0o755, false, 0o4755),
            ("g-s", 0o2755, false, 0o755),
            ("+t", 0o777, true, 0o1777),
            ("u+r-w", 0o200, false, 0o400),
            ("-x", 0o755, false, 0o644),
            ("=r", 0o777, false, 0o466),
            ("u=rw", 0o4755, false, 0o655),
        ];
        for (text, mode, is_directory, expected) in cases {
            let found = Mode::parse(text).unwrap().applied_to(mode, is_directory, 0o022);
            assert_eq!(found, expected, "{text} of {mode:o}: {found:o}");
        }
        for wrong in ["", "8", "77777", "u", "u+q", "z+x", "u+x,", "+x,y"] {
            assert!(Mode::parse(wrong).is_err(), "{wrong}");
        }
    }
}
