//! The wire structs against a C compiler's opinion: `c_oracle/oracle.c` lays them out as C structs
//! and is built here, with `cc`. Both sides read the same random bytes and write the same values.
#![cfg(not(miri))]

use pregrant::wire::blkif::{self, Abi, DiscardRequest, IndirectRequest, Request, Response, RwRequest};
use pregrant::wire::grant::{GrantEntryV1, GrantEntryV2};
use pregrant::wire::netif::{Extra, RxRequest, RxResponse, TxRequest, TxResponse};
use pregrant::wire::netif_ctrl::{CtrlRequest, CtrlResponse, GrefEntry};
use pregrant::wire::staging::StagingEntry;
use pregrant::wire::xs::Header;
use pregrant::wire::{data_ring, ring};
use pregrant_testkit::dice::Dice;
use pregrant_testkit::skip::skip;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Random values of each struct in each direction.
const CASES: usize = 3000;

/// One struct: its C name, and Rust's encoding and decoding. The fields are in the order of the C
/// program's list.
struct Layout {
    name: &'static str,
    /// Makes random bytes such that they are this struct and no other.
    fix: fn(&mut [u8]),
    read: fn(&[u8]) -> Vec<i128>,
    write: fn(&[i128]) -> Vec<u8>,
}

fn any(_: &mut [u8]) {}

fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let mut w = [0; N];
    for (w, o) in w.iter_mut().zip(bytes.chunks_exact(4)) {
        *w = u32::from_le_bytes(o.try_into().unwrap());
    }
    w
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// Values of any integer types, as the C program prints them.
macro_rules! values {
    ($($v:expr),* $(,)?) => { vec![$(i128::from($v)),*] };
}

fn parsed(bytes: &[u8]) -> (Extra, bool) {
    Extra::parse(words(bytes)).expect("`fix` made it valid")
}

fn mac_values(extra_type: u8, mac: [u8; 6], more: bool) -> Vec<i128> {
    let mut v = values![extra_type, more];
    v.extend(mac.map(i128::from));
    v
}

fn mac_of(v: &[i128]) -> [u8; 6] {
    std::array::from_fn(|i| v[2 + i] as u8)
}

fn netif_layouts() -> Vec<Layout> {
    vec![
        Layout {
            name: "tx_request",
            fix: any,
            read: |o| {
                let r = TxRequest::from_words(words(o));
                values![r.gref, r.offset, r.flags, r.id, r.size]
            },
            write: |v| {
                let r = TxRequest {
                    gref: v[0] as u32,
                    offset: v[1] as u16,
                    flags: v[2] as u16,
                    id: v[3] as u16,
                    size: v[4] as u16,
                };
                bytes(&r.to_words())
            },
        },
        Layout {
            name: "tx_response",
            fix: any,
            read: |o| {
                let [w] = words(o);
                let r = TxResponse::from_word(w);
                values![r.id, r.status]
            },
            write: |v| bytes(&[TxResponse { id: v[0] as u16, status: v[1] as i16 }.to_word()]),
        },
        Layout {
            name: "rx_request",
            fix: any,
            read: |o| {
                let r = RxRequest::from_words(words(o));
                values![r.id, r.gref]
            },
            write: |v| bytes(&RxRequest { id: v[0] as u16, gref: v[1] as u32 }.to_words()),
        },
        Layout {
            name: "rx_response",
            fix: any,
            read: |o| {
                let r = RxResponse::from_words(words(o));
                values![r.id, r.offset, r.flags, r.status]
            },
            write: |v| {
                let r = RxResponse {
                    id: v[0] as u16,
                    offset: v[1] as u16,
                    flags: v[2] as u16,
                    status: v[3] as i16,
                };
                bytes(&r.to_words())
            },
        },
        Layout {
            name: "ctrl_request",
            fix: any,
            read: |o| {
                let r = CtrlRequest::from_words(words(o));
                values![r.id, r.msg_type, r.data[0], r.data[1], r.data[2]]
            },
            write: |v| {
                let data = [v[2] as u32, v[3] as u32, v[4] as u32];
                bytes(&CtrlRequest { id: v[0] as u16, msg_type: v[1] as u16, data }.to_words())
            },
        },
        Layout {
            name: "ctrl_response",
            fix: any,
            read: |o| {
                let r = CtrlResponse::from_words(words(o));
                values![r.id, r.msg_type, r.status, r.data]
            },
            write: |v| {
                let (status, data) = (v[2] as u32, v[3] as u32);
                bytes(&CtrlResponse { id: v[0] as u16, msg_type: v[1] as u16, status, data }.to_words())
            },
        },
        Layout {
            name: "gref_entry",
            fix: any,
            read: |o| {
                let e = GrefEntry::from_bytes(o.try_into().unwrap());
                values![e.gref, e.flags, e.status]
            },
            write: |v| {
                GrefEntry { gref: v[0] as u32, flags: v[1] as u16, status: v[2] as u16 }.to_bytes().into()
            },
        },
        Layout {
            name: "staging_entry",
            fix: any,
            read: |o| {
                let e = StagingEntry::from_bytes(o.try_into().unwrap());
                values![e.id, e.gref, e.offset]
            },
            write: |v| {
                StagingEntry { id: v[0] as u16, gref: v[1] as u32, offset: v[2] as u16 }.to_bytes().into()
            },
        },
    ]
}

fn extra_layouts() -> Vec<Layout> {
    fn typed(o: &mut [u8], extra_type: u8) {
        o[0] = extra_type;
        o[1] &= 1; // only MORE is kept
    }
    vec![
        Layout {
            name: "extra_gso",
            fix: |o| {
                typed(o, 1);
                o[2] = o[2].max(1); // segments of 0 bytes are refused
                o[4] = 1 + o[4] % 2; // so are unknown types
            },
            read: |o| match parsed(o) {
                (Extra::Gso { size, gso_type }, more) => values![1, more, size, gso_type],
                other => panic!("{other:?}"),
            },
            write: |v| bytes(&Extra::Gso { size: v[2] as u16, gso_type: v[3] as u8 }.to_words(v[1] != 0)),
        },
        Layout {
            name: "extra_mcast",
            fix: |o| typed(o, 2 + o[0] % 2),
            read: |o| match parsed(o) {
                (Extra::McastAdd(mac), more) => mac_values(2, mac, more),
                (Extra::McastDel(mac), more) => mac_values(3, mac, more),
                other => panic!("{other:?}"),
            },
            write: |v| {
                let make = if v[0] == 2 { Extra::McastAdd } else { Extra::McastDel };
                bytes(&make(mac_of(v)).to_words(v[1] != 0))
            },
        },
        Layout {
            name: "extra_hash",
            fix: |o| typed(o, 4),
            read: |o| match parsed(o) {
                (Extra::Hash { hash_type, algorithm, value }, more) => {
                    let [a, b, c, d] = value.to_le_bytes();
                    values![4, more, hash_type, algorithm, a, b, c, d]
                }
                other => panic!("{other:?}"),
            },
            write: |v| {
                let value = u32::from_le_bytes(std::array::from_fn(|i| v[4 + i] as u8));
                let extra = Extra::Hash { hash_type: v[2] as u8, algorithm: v[3] as u8, value };
                bytes(&extra.to_words(v[1] != 0))
            },
        },
        Layout {
            name: "extra_xdp",
            fix: |o| typed(o, 5),
            read: |o| match parsed(o) {
                (Extra::Xdp { headroom }, more) => values![5, more, headroom],
                other => panic!("{other:?}"),
            },
            write: |v| bytes(&Extra::Xdp { headroom: v[2] as u16 }.to_words(v[1] != 0)),
        },
    ]
}

fn grant_layouts() -> Vec<Layout> {
    vec![
        Layout {
            name: "grant_v1",
            fix: any,
            read: |o| {
                let e = GrantEntryV1::from_words(words(o));
                values![e.flags, e.domid, e.frame]
            },
            write: |v| {
                let e = GrantEntryV1 { flags: v[0] as u16, domid: v[1] as u16, frame: v[2] as u32 };
                bytes(&e.to_words())
            },
        },
        Layout {
            name: "grant_v2_full",
            fix: |o| {
                o[0] = (o[0] & !3) | (o[0] % 3); // any type but transitive
                o[1] &= !1; // not sub_page
            },
            read: |o| match GrantEntryV2::from_words(words(o)) {
                GrantEntryV2::Full { flags, domid, frame } => values![flags, domid, frame],
                other => panic!("{other:?}"),
            },
            write: |v| {
                let e = GrantEntryV2::Full { flags: v[0] as u16, domid: v[1] as u16, frame: v[2] as u64 };
                bytes(&e.to_words())
            },
        },
        Layout {
            name: "grant_v2_sub",
            fix: |o| {
                o[0] = (o[0] & !3) | 1;
                o[1] |= 1;
            },
            read: |o| match GrantEntryV2::from_words(words(o)) {
                GrantEntryV2::SubPage { flags, domid, page_off, length, frame } => {
                    values![flags, domid, page_off, length, frame]
                }
                other => panic!("{other:?}"),
            },
            write: |v| {
                let e = GrantEntryV2::SubPage {
                    flags: v[0] as u16,
                    domid: v[1] as u16,
                    page_off: v[2] as u16,
                    length: v[3] as u16,
                    frame: v[4] as u64,
                };
                bytes(&e.to_words())
            },
        },
        Layout {
            name: "grant_v2_transitive",
            fix: |o| o[0] |= 3,
            read: |o| match GrantEntryV2::from_words(words(o)) {
                GrantEntryV2::Transitive { flags, domid, trans_domid, gref } => {
                    values![flags, domid, trans_domid, gref]
                }
                other => panic!("{other:?}"),
            },
            write: |v| {
                let e = GrantEntryV2::Transitive {
                    flags: v[0] as u16,
                    domid: v[1] as u16,
                    trans_domid: v[2] as u16,
                    gref: v[3] as u32,
                };
                bytes(&e.to_words())
            },
        },
    ]
}

/// Reads a block request of any kind and lists its fields.
fn read_blk(abi: Abi, o: &[u8]) -> Vec<i128> {
    match Request::from_words(abi, &words(o)) {
        Request::ReadWrite(r) => {
            let mut v = values![r.op, r.nr_segments, r.handle, r.id, r.sector];
            for s in r.seg {
                v.extend(values![s.gref, s.first_sect, s.last_sect]);
            }
            v
        }
        Request::Discard(r) => values![blkif::OP_DISCARD, r.flag, r.handle, r.id, r.sector, r.nr_sectors],
        Request::Indirect(r) => {
            let mut v = values![blkif::OP_INDIRECT, r.op, r.nr_segments, r.id, r.sector, r.handle];
            v.extend(r.grefs.map(i128::from));
            v
        }
        other => panic!("{other:?}"),
    }
}

fn write_blk(abi: Abi, v: &[i128]) -> Vec<u8> {
    let (second, id, sector) = (v[1] as u8, v[3] as u64, v[4] as u64);
    let request = match v[0] as u8 {
        blkif::OP_DISCARD => Request::Discard(DiscardRequest {
            flag: second,
            handle: v[2] as u16,
            id,
            sector,
            nr_sectors: v[5] as u64,
        }),
        blkif::OP_INDIRECT => Request::Indirect(IndirectRequest {
            op: second,
            nr_segments: v[2] as u16,
            handle: v[5] as u16,
            id,
            sector,
            grefs: std::array::from_fn(|i| v[6 + i] as u32),
        }),
        op => Request::ReadWrite(RwRequest {
            op,
            nr_segments: second,
            handle: v[2] as u16,
            id,
            sector,
            seg: std::array::from_fn(|i| blkif::Segment {
                gref: v[5 + 3 * i] as u32,
                first_sect: v[6 + 3 * i] as u8,
                last_sect: v[7 + 3 * i] as u8,
            }),
        }),
    };
    bytes(&request.to_words(abi)[..abi.slot_words()])
}

fn read_blk_response(o: &[u8]) -> Vec<i128> {
    let r = Response::from_words(words(o));
    values![r.id, r.op, r.status]
}

fn write_blk_response(abi: Abi, v: &[i128]) -> Vec<u8> {
    let r = Response { id: v[0] as u64, op: v[1] as u8, status: v[2] as i16 };
    bytes(&r.to_words()[..abi.response_words()])
}

fn blk_layouts() -> Vec<Layout> {
    fn rw(o: &mut [u8]) {
        o[0] %= 4;
    }
    fn discard(o: &mut [u8]) {
        o[0] = blkif::OP_DISCARD;
    }
    fn indirect(o: &mut [u8]) {
        o[0] = blkif::OP_INDIRECT;
    }
    let mut all = vec![Layout {
        name: "blk_segment",
        fix: any,
        read: |o| {
            let s = blkif::Segment::from_bytes(o.try_into().unwrap());
            assert_eq!(s, blkif::Segment::from_words(words(o)));
            values![s.gref, s.first_sect, s.last_sect]
        },
        write: |v| {
            let (gref, first_sect, last_sect) = (v[0] as u32, v[1] as u8, v[2] as u8);
            blkif::Segment { gref, first_sect, last_sect }.to_bytes().into()
        },
    }];
    for (name, fix) in
        [("blk64_request", rw as fn(&mut [u8])), ("blk64_discard", discard), ("blk64_indirect", indirect)]
    {
        let (read, write) = (|o: &[u8]| read_blk(Abi::X86_64, o), |v: &[i128]| write_blk(Abi::X86_64, v));
        all.push(Layout { name, fix, read, write });
    }
    for (name, fix) in
        [("blk32_request", rw as fn(&mut [u8])), ("blk32_discard", discard), ("blk32_indirect", indirect)]
    {
        let (read, write) = (|o: &[u8]| read_blk(Abi::X86_32, o), |v: &[i128]| write_blk(Abi::X86_32, v));
        all.push(Layout { name, fix, read, write });
    }
    all.push(Layout {
        name: "blk64_response",
        fix: any,
        read: read_blk_response,
        write: |v| write_blk_response(Abi::X86_64, v),
    });
    all.push(Layout {
        name: "blk32_response",
        fix: any,
        read: read_blk_response,
        write: |v| write_blk_response(Abi::X86_32, v),
    });
    all
}

const RING_HEADER: [usize; 4] = [ring::REQ_PROD, ring::REQ_EVENT, ring::RSP_PROD, ring::RSP_EVENT];
const DATA_INDEX: [usize; 8] = [
    data_ring::IN_CONS,
    data_ring::IN_PROD,
    data_ring::IN_ERROR,
    data_ring::OUT_CONS,
    data_ring::OUT_PROD,
    data_ring::OUT_ERROR,
    data_ring::RING_ORDER,
    data_ring::REFS,
];

fn u32_at(o: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(o[at..at + 4].try_into().unwrap())
}

fn put_u32s(size: usize, offsets: &[usize], v: &[i128]) -> Vec<u8> {
    let mut o = vec![0; size];
    for (&at, &v) in offsets.iter().zip(v) {
        o[at..at + 4].copy_from_slice(&(v as u32).to_le_bytes());
    }
    o
}

fn header_layouts() -> Vec<Layout> {
    vec![
        Layout {
            name: "xs_header",
            fix: any,
            read: |o| {
                let h = Header::from_bytes(o.try_into().unwrap());
                values![h.msg_type, h.req_id, h.tx_id, h.len_bytes]
            },
            write: |v| {
                let (msg_type, req_id, tx_id, len_bytes) =
                    (v[0] as u32, v[1] as u32, v[2] as u32, v[3] as u32);
                Header { msg_type, req_id, tx_id, len_bytes }.to_bytes().into()
            },
        },
        Layout {
            name: "ring_header",
            fix: any,
            read: |o| RING_HEADER.map(|at| i128::from(u32_at(o, at))).into(),
            write: |v| put_u32s(ring::HEADER_BYTES, &RING_HEADER, v),
        },
        Layout {
            name: "data_index",
            fix: any,
            read: |o| {
                let signed = |at| at == data_ring::IN_ERROR || at == data_ring::OUT_ERROR;
                DATA_INDEX
                    .map(|at| if signed(at) { (u32_at(o, at) as i32).into() } else { u32_at(o, at).into() })
                    .into()
            },
            write: |v| put_u32s(data_ring::REFS + 4, &DATA_INDEX, v),
        },
    ]
}

fn layouts() -> Vec<Layout> {
    [netif_layouts(), extra_layouts(), grant_layouts(), blk_layouts(), header_layouts()]
        .into_iter()
        .flatten()
        .collect()
}

/// The C program, built once; `None` without a C compiler.
fn oracle() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c_oracle/oracle.c");
        // Another run of the tests may share the directory: build apart, then put it in place at
        // once.
        let (fresh, program) = (dir.join(format!("oracle-{}", std::process::id())), dir.join("oracle"));
        let compiled = Command::new("cc")
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-o"])
            .args([&fresh, &source])
            .output();
        match compiled {
            Ok(out) => {
                assert!(
                    out.status.success(),
                    "{}:\n{}",
                    source.display(),
                    String::from_utf8_lossy(&out.stderr)
                );
                std::fs::rename(&fresh, &program).unwrap();
                Some(program)
            }
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => panic!("cannot run the C compiler `cc`: {e} (install gcc)"),
        }
    });
    if built.is_none() {
        skip("no C compiler (install gcc)");
    }
    built.as_deref()
}

/// Runs the C program over `lines` and returns the lines that it prints, one for each.
fn ask(program: &Path, verb: &str, lines: &[String]) -> Vec<String> {
    let mut child =
        Command::new(program).arg(verb).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let out = std::thread::scope(|s| {
        // Written beside the reading: neither pipe holds all of it.
        s.spawn(move || {
            // A program that ends early breaks the pipe: its exit code and its answers tell.
            let _ = lines.iter().try_for_each(|l| stdin.write_all(l.as_bytes()).and(stdin.write_all(b"\n")));
        });
        child.wait_with_output().unwrap()
    });
    assert!(out.status.success(), "the C program failed, its reason is above");
    String::from_utf8(out.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Names and sizes, as the C program has them.
fn listed(program: &Path) -> Vec<(String, usize)> {
    let line = |l: String| {
        let mut parts = l.split(' ');
        (parts.next().unwrap().to_owned(), parts.next().unwrap().parse().unwrap())
    };
    ask(program, "list", &[]).into_iter().map(line).collect()
}

/// Random bytes; in the first cases all the same, the ends of every range.
fn random_bytes(dice: &mut Dice, size: usize, case: usize) -> Vec<u8> {
    match case {
        0..=3 => vec![[0x00, 0xFF, 0x7F, 0x80][case]; size],
        _ => (0..size).map(|_| (dice.number() >> 56) as u8).collect(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|o| format!("{o:02x}")).collect()
}

/// Each struct with its size and bytes for [`CASES`] cases.
fn cases(program: &Path) -> Vec<(Layout, Vec<Vec<u8>>)> {
    let sizes = listed(program);
    let mut dice = Dice::new(0x5EED_0F5E_C0DE_5EED);
    let with_bytes = |l: Layout| {
        let size = sizes.iter().find(|(name, _)| name == l.name).expect("the lists agree").1;
        let mut one = |case| {
            let mut o = random_bytes(&mut dice, size, case);
            (l.fix)(&mut o);
            o
        };
        let bytes = (0..CASES).map(&mut one).collect();
        (l, bytes)
    };
    layouts().into_iter().map(with_bytes).collect()
}

fn text(values: &[i128]) -> String {
    values.iter().map(i128::to_string).collect::<Vec<_>>().join(" ")
}

#[test]
fn both_have_the_same_structs() {
    let Some(program) = oracle() else { return };
    let mut in_c: Vec<_> = listed(program).into_iter().map(|(name, _)| name).collect();
    let mut in_rust: Vec<_> = layouts().iter().map(|l| l.name.to_owned()).collect();
    in_c.sort();
    in_rust.sort();
    assert_eq!(in_c, in_rust);
}

#[test]
fn both_read_the_same_values() {
    let Some(program) = oracle() else { return };
    for (layout, cases) in cases(program) {
        let lines: Vec<_> = cases.iter().map(|o| format!("dec {} {}", layout.name, hex(o))).collect();
        let answers = ask(program, "run", &lines);
        assert_eq!(answers.len(), CASES);
        for (o, c) in cases.iter().zip(answers) {
            assert_eq!(text(&(layout.read)(o)), c, "{} from {}", layout.name, hex(o));
        }
    }
}

#[test]
fn both_write_the_same_bytes() {
    let Some(program) = oracle() else { return };
    for (layout, cases) in cases(program) {
        // Values as C reads them, so that this test stands without Rust's reading side.
        let lines: Vec<_> = cases.iter().map(|o| format!("dec {} {}", layout.name, hex(o))).collect();
        let values = ask(program, "run", &lines);
        let lines: Vec<_> = values.iter().map(|v| format!("enc {} {v}", layout.name)).collect();
        let answers = ask(program, "run", &lines);
        assert_eq!(answers.len(), CASES);
        for (v, c) in values.iter().zip(answers) {
            let numbers: Vec<i128> = v.split(' ').map(|n| n.parse().unwrap()).collect();
            let mut rust = (layout.write)(&numbers);
            // A block slot is longer than most of its requests; what is behind them is zero.
            let rest = rust.split_off(c.len() / 2);
            assert!(rest.iter().all(|&o| o == 0), "{} with {v}", layout.name);
            assert_eq!(hex(&rust), c, "{} with {v}", layout.name);
        }
    }
}

#[test]
fn both_fit_the_same_number_of_slots() {
    let Some(program) = oracle() else { return };
    let mut dice = Dice::new(0x0451_2E5E_ED00_0001);
    let sizes: Vec<(usize, usize)> = (0..CASES)
        .map(|_| (dice.number() as usize % (20 * 4096), 1 + dice.number() as usize % 128))
        .collect();
    let lines: Vec<_> = sizes.iter().map(|(bytes, slot)| format!("ring {bytes} {slot}")).collect();
    let answers = ask(program, "run", &lines);
    assert_eq!(answers.len(), CASES);
    for ((bytes, slot), c) in sizes.into_iter().zip(answers) {
        assert_eq!(ring::ring_size(bytes, slot).to_string(), c, "{bytes} bytes in slots of {slot}");
    }
}
