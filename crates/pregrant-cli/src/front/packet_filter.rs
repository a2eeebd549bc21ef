//! Classic BPF: a program that says of a frame whether it matches, as `tcpdump -ddd` prints it.
//!
//! ```text
//!   FILE --read--> text: a count, then "code jt jf k" a line     --decode, verify--> PacketFilter
//!                  or struct sock_filter, 8 bytes each                   '--run(head, length)--> match, or not
//! ```
//! A frame's *head* is the private copy of its first bytes that a [frame hook](super::frame_hook)
//! gets. A load beyond the head's end ends the program without a match, as one beyond the packet's
//! end does elsewhere; one that no head can have is refused when the file is read.
//!
//! Invariants: each jump of a verified program goes forward, to an instruction, and its last
//! instruction returns: a run ends after at most as many steps as there are instructions, 4096. It
//! reads the head, the length, and 16 words of its own.
//!
//! What a hostile file may do: be refused, or match what it likes. What a hostile frame may do: end
//! a run early.

use pregrant::net::front::lent::RX_HEAD_BYTES;
use std::fmt::{self, Display};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Largest number of instructions of a program, as in Linux.
pub const INSTRUCTIONS_MAX: usize = 4096;
/// Number of words of a program's own memory.
const WORDS: usize = 16;
/// Number of bytes of an instruction in a binary program.
const BINARY_BYTES: usize = 8;
/// Largest size of a program's text in bytes.
const FILE_MOST: u64 = 256 * 1024;
/// Loads from this offset on read data that only packets inside of Linux have.
const ANCILLARY: u32 = 0xFFE0_0000;

#[derive(Clone, Debug)]
pub struct PacketFilter(Box<[Step]>);

/// The reason why a file is not a program that can run.
#[derive(Debug)]
pub enum FilterError {
    Unread(io::Error),
    /// The program has an unknown format.
    Form(String),
    /// Instruction number `at`, counted from 0, is not allowed.
    Instruction {
        at: usize,
        why: String,
    },
}

impl Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unread(e) => write!(f, "{e}"),
            Self::Form(why) => f.write_str(why),
            Self::Instruction { at, why } => write!(f, "instruction {at}: {why}"),
        }
    }
}

impl std::error::Error for FilterError {}

/// An instruction in the form of the file: `struct sock_filter`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    pub code: u16,
    /// Number of instructions to skip if a test is true.
    pub jt: u8,
    /// Number of instructions to skip if the condition is false.
    pub jf: u8,
    pub k: u32,
}

#[derive(Clone, Copy, Debug)]
enum Register {
    A,
    X,
}

#[derive(Clone, Copy, Debug)]
enum Operand {
    K(u32),
    X,
}

/// The source of a loaded value.
#[derive(Clone, Copy, Debug)]
enum Source {
    Constant(u32),
    /// A number of bytes of the frame's head, from an offset on.
    Head(u8, u32),
    Indexed(u8, u32),
    /// Four times the lower half of the byte at an offset, which is the length of an IPv4 header.
    HeaderLength(u32),
    Word(u8),
    Length,
}

#[derive(Clone, Copy, Debug)]
enum Alu {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Or,
    And,
    Xor,
    Lsh,
    Rsh,
}

#[derive(Clone, Copy, Debug)]
enum Test {
    Equal,
    Greater,
    AtLeast,
    AnyBit,
}

/// A decoded instruction. A jump has the index of its target.
#[derive(Clone, Copy, Debug)]
enum Step {
    Load(Register, Source),
    Store(Register, u8),
    Alu(Alu, Operand),
    Negate,
    Jump(u16),
    Branch { test: Test, with: Operand, yes: u16, no: u16 },
    ReturnConstant(u32),
    ReturnA,
    AToX,
    XToA,
}

impl PacketFilter {
    /// Reads and verifies a file.
    ///
    /// # Errors
    /// The file cannot be read, or is no such program.
    pub fn read(path: &Path) -> Result<Self, FilterError> {
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(FilterError::Unread)?;
        file.take(FILE_MOST + 1).read_to_end(&mut bytes).map_err(FilterError::Unread)?;
        Self::parse(&bytes)
    }

    /// Parses a program, as text or in binary, and verifies it.
    ///
    /// # Errors
    /// The program is of neither form, or is not allowed.
    pub fn parse(bytes: &[u8]) -> Result<Self, FilterError> {
        let form = |why: &str| Err(FilterError::Form(why.into()));
        if bytes.len() as u64 > FILE_MOST {
            return form("it is longer than any program of 4096 instructions");
        }
        if bytes.starts_with(b"\x7fELF") {
            return form("it is an ELF object (eBPF), and only classic BPF is run");
        }
        if bytes.iter().all(|b| b.is_ascii_digit() || b.is_ascii_whitespace()) {
            return Self::verify(&instructions_of_text(bytes)?);
        }
        if !bytes.len().is_multiple_of(BINARY_BYTES) {
            return form("it has neither numbers alone nor instructions of 8 bytes each");
        }
        let all = bytes.as_chunks::<BINARY_BYTES>().0.iter().map(|&[a, b, jt, jf, k @ ..]| Instruction {
            code: u16::from_ne_bytes([a, b]),
            jt,
            jf,
            k: u32::from_ne_bytes(k),
        });
        Self::verify(&all.collect::<Vec<_>>())
    }

    /// Checks a program, which may then be run.
    ///
    /// # Errors
    /// An instruction is not allowed.
    pub fn verify(program: &[Instruction]) -> Result<Self, FilterError> {
        let n = program.len();
        if !(1..=INSTRUCTIONS_MAX).contains(&n) {
            return Err(FilterError::Form(format!("it has {n} instructions, and can have 1 to 4096")));
        }
        let step = |(at, instruction): (usize, &Instruction)| {
            decode(*instruction, at, n).map_err(|why| FilterError::Instruction { at, why })
        };
        let steps = program.iter().enumerate().map(step).collect::<Result<Box<[_]>, _>>()?;
        match steps.last() {
            Some(Step::ReturnConstant(_) | Step::ReturnA) => Ok(Self(steps)),
            _ => Err(FilterError::Instruction { at: n - 1, why: "the last one does not return".into() }),
        }
    }

    /// Returns true if the program selects a frame of `len` bytes that begins with `head`.
    pub fn matches(&self, head: &[u8], len: usize) -> bool {
        self.run(head, len).is_some_and(|said| said != 0)
    }

    /// Runs the program and returns its value. None: the program read beyond the frame, or divided
    /// by 0.
    fn run(&self, head: &[u8], len: usize) -> Option<u32> {
        let (mut a, mut x, mut words, mut at) = (0u32, 0u32, [0; WORDS], 0);
        loop {
            let step = *self.0.get(at)?;
            at += 1;
            let value = |with, x| match with {
                Operand::K(k) => k,
                Operand::X => x,
            };
            match step {
                Step::Load(to, from) => {
                    let loaded = match from {
                        Source::Constant(k) => k,
                        Source::Head(size, k) => load(head, k, size)?,
                        // Linux adds them so.
                        Source::Indexed(size, k) => load(head, k.wrapping_add(x), size)?,
                        Source::HeaderLength(k) => (load(head, k, 1)? & 0xF) << 2,
                        Source::Word(i) => *words.get(usize::from(i))?,
                        Source::Length => len as u32,
                    };
                    match to {
                        Register::A => a = loaded,
                        Register::X => x = loaded,
                    }
                }
                Step::Store(from, i) => {
                    *words.get_mut(usize::from(i))? = match from {
                        Register::A => a,
                        Register::X => x,
                    }
                }
                Step::Alu(op, with) => a = compute(op, a, value(with, x))?,
                Step::Negate => a = a.wrapping_neg(),
                Step::Jump(to) => at = to.into(),
                Step::Branch { test, with, yes, no } => {
                    let with = value(with, x);
                    let is_true = match test {
                        Test::Equal => a == with,
                        Test::Greater => a > with,
                        Test::AtLeast => a >= with,
                        Test::AnyBit => a & with != 0,
                    };
                    at = if is_true { yes } else { no }.into();
                }
                Step::ReturnConstant(k) => return Some(k),
                Step::ReturnA => return Some(a),
                Step::AToX => x = a,
                Step::XToA => a = x,
            }
        }
    }
}

/// Loads `size` bytes of the head from `at` on, in network order. None: the head ends before.
fn load(head: &[u8], at: u32, size: u8) -> Option<u32> {
    let bytes = head.get(at as usize..)?.get(..usize::from(size))?;
    Some(bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)))
}

fn compute(op: Alu, a: u32, with: u32) -> Option<u32> {
    Some(match op {
        Alu::Add => a.wrapping_add(with),
        Alu::Sub => a.wrapping_sub(with),
        Alu::Mul => a.wrapping_mul(with),
        Alu::Div => a.checked_div(with)?,
        Alu::Mod => a.checked_rem(with)?,
        Alu::Or => a | with,
        Alu::And => a & with,
        Alu::Xor => a ^ with,
        // By the lower five bits, as Linux does it.
        Alu::Lsh => a.wrapping_shl(with),
        Alu::Rsh => a.wrapping_shr(with),
    })
}

/// Parses a count, and this number of lines with four numbers each.
fn instructions_of_text(bytes: &[u8]) -> Result<Vec<Instruction>, FilterError> {
    let form = |why: String| FilterError::Form(why);
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let (_, count) = lines.next().ok_or_else(|| form("it is empty".into()))?;
    let count: usize =
        count.trim().parse().map_err(|_| form("line 1 is not the number of instructions".into()))?;
    let mut all = Vec::new();
    for (at, line) in lines {
        let numbers: Option<Vec<u32>> = line.split_whitespace().map(|number| number.parse().ok()).collect();
        let instruction = match numbers.as_deref() {
            Some(&[code, jt, jf, k]) => (|| {
                let (code, jt, jf) = (code.try_into().ok()?, jt.try_into().ok()?, jf.try_into().ok()?);
                Some(Instruction { code, jt, jf, k })
            })(),
            _ => None,
        };
        let what = "code, jt, jf and k, which are numbers below 65536, 256, 256 and 2^32";
        all.push(instruction.ok_or_else(|| form(format!("line {} is not {what}", at + 1)))?);
    }
    if all.len() != count {
        return Err(form(format!("line 1 says {count} instructions, and {} follow", all.len())));
    }
    Ok(all)
}

/// The classes of instructions, from the lower three bits of the code.
const LD: u16 = 0;
const LDX: u16 = 1;
const ST: u16 = 2;
const STX: u16 = 3;
const ALU: u16 = 4;
const JMP: u16 = 5;
const RET: u16 = 6;
const MISC: u16 = 7;
/// The bit that makes X the operand.
const BY_X: u16 = 8;

/// Decodes and checks instruction number `at` of `n`.
fn decode(Instruction { code, jt, jf, k }: Instruction, at: usize, n: usize) -> Result<Step, String> {
    let word = || match k {
        0..16 => Ok(k as u8),
        _ => Err(format!("it uses word {k} of memory, which has {WORDS} words")),
    };
    let head = |size: u8| {
        if k >= ANCILLARY {
            return Err("it loads what Linux stores beside a packet, such as its mark, and a hook has the frame alone; \
                        use an expression that reads the bytes of a frame"
                .into());
        }
        match (k as usize).checked_add(size.into()) {
            Some(end) if end <= RX_HEAD_BYTES => Ok(k),
            _ => Err(format!("it reads byte {k}, and a hook sees the first {RX_HEAD_BYTES} of a frame")),
        }
    };
    // Behind `skipped` instructions.
    let to = |skipped: u32| match at + 1 + skipped as usize {
        to if to < n => Ok(to as u16),
        to => Err(format!("it jumps to instruction {to}, and there are {n}")),
    };
    let unknown = || Err(format!("code {code:#06x} is unknown"));
    let with = if code & BY_X != 0 { Operand::X } else { Operand::K(k) };
    Ok(match (code & 7, code & !7) {
        (LD, 0x00) => Step::Load(Register::A, Source::Constant(k)),
        (LD, mode @ (0x20 | 0x28 | 0x30)) => {
            Step::Load(Register::A, Source::Head(size(mode), head(size(mode))?))
        }
        (LD, mode @ (0x40 | 0x48 | 0x50)) => Step::Load(Register::A, Source::Indexed(size(mode), k)),
        (LD, 0x60) => Step::Load(Register::A, Source::Word(word()?)),
        (LD, 0x80) => Step::Load(Register::A, Source::Length),
        (LDX, 0x00) => Step::Load(Register::X, Source::Constant(k)),
        (LDX, 0x60) => Step::Load(Register::X, Source::Word(word()?)),
        (LDX, 0x80) => Step::Load(Register::X, Source::Length),
        (LDX, 0xb0) => Step::Load(Register::X, Source::HeaderLength(head(1)?)),
        (ST, 0) => Step::Store(Register::A, word()?),
        (STX, 0) => Step::Store(Register::X, word()?),
        (ALU, 0x80) => Step::Negate,
        (ALU, op) => {
            let op = match op & !BY_X {
                0x00 => Alu::Add,
                0x10 => Alu::Sub,
                0x20 => Alu::Mul,
                0x30 => Alu::Div,
                0x40 => Alu::Or,
                0x50 => Alu::And,
                0x60 => Alu::Lsh,
                0x70 => Alu::Rsh,
                0x90 => Alu::Mod,
                0xa0 => Alu::Xor,
                _ => return unknown(),
            };
            match (op, with) {
                (Alu::Div | Alu::Mod, Operand::K(0)) => return Err("it divides by 0".into()),
                (Alu::Lsh | Alu::Rsh, Operand::K(32..)) => {
                    return Err(format!("it shifts by {k} bits, and 31 is the most"));
                }
                _ => Step::Alu(op, with),
            }
        }
        (JMP, 0x00) => Step::Jump(to(k)?),
        (JMP, test) => {
            let test = match test & !BY_X {
                0x10 => Test::Equal,
                0x20 => Test::Greater,
                0x30 => Test::AtLeast,
                0x40 => Test::AnyBit,
                _ => return unknown(),
            };
            Step::Branch { test, with, yes: to(jt.into())?, no: to(jf.into())? }
        }
        (RET, 0x00) => Step::ReturnConstant(k),
        (RET, 0x10) => Step::ReturnA,
        (MISC, 0x00) => Step::AToX,
        (MISC, 0x80) => Step::XToA,
        _ => return unknown(),
    })
}

/// Returns the number of bytes that a load reads.
fn size(mode: u16) -> u8 {
    match mode & 0x18 {
        0x00 => 4,
        0x08 => 2,
        _ => 1,
    }
}
