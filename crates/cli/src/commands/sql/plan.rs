//! `EXPLAIN QUERY PLAN` as a tree.

use super::quote;
use crate::sys::statement::{Cell, Statement};

/// The steps of a plan: number, number of the step above, text.
#[derive(Default)]
pub struct Plan(Vec<(i64, i64, Vec<u8>)>);

impl Plan {
    pub fn add(&mut self, statement: &Statement<'_>) {
        let number = |index| match statement.cell(index) {
            Cell::Integer(number) => number,
            _ => 0,
        };
        let text = quote::plain(statement.cell(3)).unwrap_or_default();
        self.0.push((number(0), number(1), text));
    }

    pub fn finish(self) -> Vec<u8> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let mut out = b"QUERY PLAN\n".to_vec();
        // What is still to be written, the next on top: an index, and what is in front of it.
        let mut open: Vec<(usize, Vec<u8>)> = self.below(0, 0, b"");
        while let Some((index, before)) = open.pop() {
            let (number, above, text) = &self.0[index];
            let is_last = !self.0[index + 1..].iter().any(|(_, other, _)| other == above);
            let (mark, further) = if is_last { ("`--", "   ") } else { ("|--", "|  ") };
            out.extend([&before, mark.as_bytes(), text, b"\n"].concat());
            if *number != 0 {
                let before = [&before, further.as_bytes()].concat();
                open.extend(self.below(index + 1, *number, &before));
            }
        }
        out
    }

    /// The steps from `start` on that are below one, the first on top. A step comes after the one
    /// above it.
    fn below(&self, start: usize, number: i64, before: &[u8]) -> Vec<(usize, Vec<u8>)> {
        let steps = self.0.iter().enumerate().skip(start).rev();
        let below = steps.filter(|(_, (_, above, _))| *above == number);
        below.map(|(index, _)| (index, before.to_vec())).collect()
    }
}
