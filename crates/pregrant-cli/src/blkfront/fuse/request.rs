//! A parsed request of the kernel: a header of 40 bytes, and the data of its operation behind it,
//! in the machine's byte order (`linux/fuse.h`, from 7.9 on).

/// Length of a request's header in bytes.
const HEADER: usize = 40;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::blkfront) enum Op<'a> {
    /// Looks up a name in a directory.
    Lookup {
        name: &'a [u8],
    },
    /// The kernel forgets a file. This request is not answered.
    Forget,
    GetAttr,
    /// Attributes are changed; `owner` is true if the mode or the owner is among them.
    SetAttr {
        size: Option<u64>,
        owner: bool,
    },
    Open {
        flags: u32,
    },
    Read {
        offset: u64,
        size: u32,
    },
    Write {
        offset: u64,
        data: &'a [u8],
        flags: u32,
    },
    StatFs,
    Release,
    Fsync,
    OpenDir,
    ReadDir {
        offset: u64,
        size: u32,
    },
    ReleaseDir,
    Fallocate {
        offset: u64,
        len: u64,
        mode: u32,
    },
    /// The program that waits for another request got a signal. This request is not answered.
    Interrupt {
        of: u64,
    },
    /// An operation that is unknown, or a request that is too short for its operation.
    Other,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::blkfront) struct Request<'a> {
    pub unique: u64,
    /// The number of the file that the request is about.
    pub node: u64,
    /// The number of the thread that sent the request; 0: it is not in this process's namespace.
    pub thread: u32,
    pub op: Op<'a>,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl<'a> Request<'a> {
    /// Parses a request. None: the request is invalid.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (op, unique, node) = (u32_at(bytes, 4)?, u64_at(bytes, 8)?, u64_at(bytes, 16)?);
        let thread = u32_at(bytes, 32)?;
        let op = Op::parse(op, bytes.get(HEADER..)?).unwrap_or(Op::Other);
        Some(Self { unique, node, thread, op })
    }
}

impl<'a> Op<'a> {
    fn parse(op: u32, body: &'a [u8]) -> Option<Self> {
        // Of setattr's first word.
        const MODE_UID_GID: u32 = 7;
        const SIZE: u32 = 8;
        Some(match op {
            1 => Self::Lookup { name: body.split(|byte| *byte == 0).next()? },
            // One file, and many.
            2 | 42 => Self::Forget,
            3 => Self::GetAttr,
            4 => {
                let valid = u32_at(body, 0)?;
                let size = u64_at(body, 16)?;
                Self::SetAttr { size: (valid & SIZE != 0).then_some(size), owner: valid & MODE_UID_GID != 0 }
            }
            14 => Self::Open { flags: u32_at(body, 0)? },
            15 => Self::Read { offset: u64_at(body, 8)?, size: u32_at(body, 16)? },
            16 => {
                let len = u32_at(body, 16)? as usize;
                let data = body.get(40..)?.get(..len)?;
                Self::Write { offset: u64_at(body, 8)?, data, flags: u32_at(body, 32)? }
            }
            17 => Self::StatFs,
            18 => Self::Release,
            20 => Self::Fsync,
            27 => Self::OpenDir,
            28 => Self::ReadDir { offset: u64_at(body, 8)?, size: u32_at(body, 16)? },
            29 => Self::ReleaseDir,
            36 => Self::Interrupt { of: u64_at(body, 0)? },
            43 => {
                let (offset, len) = (u64_at(body, 8)?, u64_at(body, 16)?);
                Self::Fallocate { offset, len, mode: u32_at(body, 24)? }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(op: u32, body: &[u8]) -> Vec<u8> {
        let mut all = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        all.extend(op.to_ne_bytes());
        all.extend(77u64.to_ne_bytes());
        all.extend(2u64.to_ne_bytes());
        // Whose it is, and how much more there is.
        [0u32, 0, 4321, 0].into_iter().for_each(|word| all.extend(word.to_ne_bytes()));
        all.extend(body);
        all
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn requests_are_taken_apart_and_short_ones_are_of_no_known_kind() {
        let halves = |low: u32, high: u32| {
            u64::from_ne_bytes([low.to_ne_bytes(), high.to_ne_bytes()].concat().try_into().unwrap())
        };
        let write = [&words(&[9, 4096, halves(3, 0), 0, halves(0x1000, 0)])[..], b"abc"].concat();
        let cases = [
            (1, b"disk\0".to_vec(), Op::Lookup { name: b"disk" }),
            (4, words(&[8, 0, 512]), Op::SetAttr { size: Some(512), owner: false }),
            (4, words(&[1, 0, 512]), Op::SetAttr { size: None, owner: true }),
            (14, words(&[halves(2, 0)]), Op::Open { flags: 2 }),
            (15, words(&[9, 8192, halves(512, 0)]), Op::Read { offset: 8192, size: 512 }),
            (16, write, Op::Write { offset: 4096, data: b"abc", flags: 0x1000 }),
            (36, words(&[76]), Op::Interrupt { of: 76 }),
            (43, words(&[9, 10, 11, halves(3, 0)]), Op::Fallocate { offset: 10, len: 11, mode: 3 }),
        ];
        for (op, body, expected) in cases {
            let all = bytes(op, &body);
            let request = Request::parse(&all).unwrap();
            assert_eq!(request, Request { unique: 77, node: 2, thread: 4321, op: expected });
            let parsed = |len: usize| Request::parse(&all[..len]).map(|request| request.op);
            assert_eq!(parsed(HEADER - 1), None);
            assert!(op == 1 || parsed(HEADER) == Some(Op::Other));
            (HEADER..all.len()).for_each(|len| assert!(parsed(len).is_some()));
        }
        assert_eq!(Request::parse(&bytes(9999, &[])).unwrap().op, Op::Other);
    }
}
