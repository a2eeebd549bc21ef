//! A system's handshake as a table of steps, and who plays it against our end.
//!
//! ```text
//!   Write, Commit, Remove, State   what the system writes: {ring0} stands for a grant, {port0} for a channel
//!   Wait, Rests, Sees              what it waits for and finds, and what else it may see meanwhile without giving up
//!   Grant, Map, Io, End            its rings: made by a front, or taken from our keys by a back; used; gone
//!   Toolstack, Close               what others do meanwhile
//! ```

use super::machine::{Keys, Machine};
use std::collections::BTreeMap;

/// One step of a table.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Keys, each by itself, in this order.
    Write(Keys),
    Commit(Keys),
    Remove(&'static [&'static str]),
    State(u8),
    /// Waits for one of the first states; any that is not among those or the second makes it give
    /// up.
    Wait(&'static [u8], &'static [u8]),
    /// Our end stays in this state.
    Rests(u8),
    /// Our end's keys, as it must find them; None: absent.
    Sees(&'static [(&'static str, Option<&'static str>)]),
    /// Domain 0 writes a key of the back's directory.
    Toolstack(&'static str, &'static str),
    /// A front makes rings: how many queues, pages of a ring as the exponent of 2.
    Grant(Grant),
    /// A back maps our rings by these keys.
    Map(&'static [&'static str]),
    /// Something travels through the rings.
    Io(Io),
    /// A front takes back its rings and pages; our back must have none of them mapped; a back
    /// unmaps and unbinds ours.
    End,
    /// Our end closes, because its owner wants it.
    Close,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    pub queues: usize,
    pub order: u32,
    /// Net: two channels a queue. Block: slots of 32 bits.
    pub other: bool,
    /// Pages that the back only reads are granted read-only.
    pub read_only: bool,
}

/// One queue, rings of a page, one channel or 64-bit slots; what the back reads is granted
/// read-only.
pub const ONE: Grant = Grant { queues: 1, order: 0, other: false, read_only: true };

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Io {
    /// Net: frames of one slot. Block: short writes and reads, and a flush.
    Plain,
    /// Net: frames over several slots. Block: requests of many segments. Until the rings' indices
    /// have passed their end.
    Many,
    Indirect,
    Read,
    /// Block: a barrier and a flush of the same id at once (Mini-OS, OVMF).
    BarrierAndFlush,
    /// Block: a flush whose other fields are what the slot held before (NetBSD).
    StaleFlush,
    /// Net: slots of size 0 among others (Mini-OS).
    Empty,
}

/// Both ends of a device's class: our driver, and the other system's rings.
pub trait Pair {
    /// Our driver checks the store once.
    fn step(&mut self, m: &mut Machine);
    fn close(&mut self, m: &mut Machine);
    /// Makes rings, and sets the names that the script uses for their grants and channels.
    fn grant(&mut self, _: &mut Machine, _: Grant) -> Vec<(String, u32)> {
        unreachable!("a back grants nothing")
    }
    /// Attaches rings by the values of these keys.
    fn map(&mut self, _: &mut Machine, _: &[(&'static str, u32)]) {
        unreachable!("a front maps nothing")
    }
    fn io(&mut self, m: &mut Machine, io: Io);
    /// Lets go of its own grants and channels. Whatever is still mapped makes it fail.
    fn end(&mut self, m: &mut Machine);
}

pub fn play(m: &mut Machine, pair: &mut impl Pair, back_dir: &str, steps: &[Step]) {
    let mut names = BTreeMap::new();
    for (k, step) in steps.iter().enumerate() {
        let at = || format!("step {k}, {step:?}");
        match *step {
            Step::Write(keys) => m.write(&filled(keys, &names)),
            Step::Commit(keys) => m.commit(&filled(keys, &names)),
            Step::Remove(keys) => keys.iter().for_each(|key| m.remove(key)),
            Step::State(state) => m.write(&[("state".into(), state.to_string())]),
            Step::Wait(until, may) => wait(m, pair, until, may, &at()),
            Step::Rests(state) => {
                (0..4).for_each(|_| pair.step(m));
                let now = m.read("state");
                assert_eq!(now.as_deref(), Some(state.to_string().as_str()), "{}", at());
                m.take_states();
            }
            Step::Sees(keys) => {
                for (key, value) in keys {
                    assert_eq!(m.read(key).as_deref(), *value, "{key} in {}", at());
                }
            }
            Step::Toolstack(key, value) => m.toolstack_writes(back_dir, key, value),
            Step::Grant(grant) => {
                names =
                    pair.grant(m, grant).into_iter().map(|(name, n)| (format!("{{{name}}}"), n)).collect();
            }
            Step::Map(keys) => {
                let number = |key: &&'static str| {
                    let text = m.read(key).unwrap_or_else(|| panic!("{key} is not there: {}", at()));
                    (*key, text.parse().unwrap_or_else(|_| panic!("{key} is {text:?}: {}", at())))
                };
                let found: Vec<_> = keys.iter().map(number).collect();
                pair.map(m, &found);
            }
            Step::Io(io) => pair.io(m, io),
            Step::End => pair.end(m),
            Step::Close => pair.close(m),
        }
    }
    (0..4).for_each(|_| pair.step(m));
    m.assert_empty();
}

/// Keys with numbers in the place of names.
fn filled(keys: Keys, names: &BTreeMap<String, u32>) -> Vec<(String, String)> {
    let value = |text: &str| match names.get(text) {
        Some(n) => n.to_string(),
        None => {
            assert!(!text.starts_with('{'), "nothing was granted that is called {text}");
            text.into()
        }
    };
    keys.iter().map(|(key, text)| ((*key).into(), value(text))).collect()
}

/// The system checks our state whenever it changes: it may see each state that we wrote, and it
/// may see only the last.
fn wait(m: &mut Machine, pair: &mut impl Pair, until: &[u8], may: &[u8], at: &str) {
    for _ in 0..16 {
        let now: u8 = m.read("state").map_or(0, |text| text.parse().expect("a state is a number"));
        let written = m.take_states();
        for state in written.iter().chain([&now]) {
            assert!(until.contains(state) || may.contains(state), "it sees state {state} and gives up: {at}");
        }
        if until.contains(&now) {
            return;
        }
        pair.step(m);
    }
    panic!("it waits for ever, at state {:?}: {at}", m.read("state"));
}
