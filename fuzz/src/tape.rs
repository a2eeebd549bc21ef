//! An input as a tape of values, read from the front: when it has run out everything is 0.
//!
//! Taken byte by byte and never from the end, so that a change in one place of an input changes one
//! operation, and an input that was kept means the same next year.

use arbitrary::Unstructured;

/// Plays at most `most` operations of an input, with a game that is set up from the tape, until one
/// reports the end.
pub fn play<G>(
    data: &[u8],
    most: usize,
    begin: impl FnOnce(&mut Tape<'_>) -> G,
    mut turn: impl FnMut(&mut G, &mut Tape<'_>) -> bool,
    close: impl FnOnce(G),
) {
    let mut tape = Tape::new(data);
    let mut game = begin(&mut tape);
    while tape.more(most) && turn(&mut game, &mut tape) {}
    close(game);
}

/// The rest of an input.
pub struct Tape<'a> {
    rest: Unstructured<'a>,
    played: usize,
}

impl<'a> Tape<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Self { rest: Unstructured::new(data), played: 0 }
    }
    /// True if the tape has run out.
    pub fn is_over(&self) -> bool {
        self.rest.is_empty()
    }
    /// Whether another operation begins: the tape has not run out, and there were fewer than that.
    pub fn more(&mut self, most: usize) -> bool {
        let more = self.played < most && !self.is_over();
        self.played += usize::from(more);
        more
    }
    pub fn u8(&mut self) -> u8 {
        self.rest.arbitrary().unwrap_or_default()
    }
    pub fn u16(&mut self) -> u16 {
        self.rest.arbitrary().unwrap_or_default()
    }
    pub fn u32(&mut self) -> u32 {
        self.rest.arbitrary().unwrap_or_default()
    }
    /// A number below `n`; `n` is at most 256.
    pub fn below(&mut self, n: usize) -> usize {
        self.u8() as usize % n
    }
    /// Chooses one of these; there are at most 256.
    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
    /// The next bytes of the tape, at most `n`.
    pub fn bytes(&mut self, n: usize) -> &'a [u8] {
        self.rest.bytes(n.min(self.rest.len())).unwrap_or_default()
    }
    pub fn rest(&mut self) -> &'a [u8] {
        self.bytes(usize::MAX)
    }
    /// Some bytes: a length of one byte, then as many.
    pub fn string(&mut self) -> &'a [u8] {
        let n = self.u8() as usize;
        self.bytes(n)
    }
}
