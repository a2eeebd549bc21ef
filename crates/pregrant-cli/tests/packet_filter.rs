//! Programs of tcpdump, invalid programs, and any programs compared with Linux's own execution of
//! them.

use pregrant_cli::front::packet_filter::{Instruction, PacketFilter};
use pregrant_testkit::dice::Dice;
use pregrant_testkit::skip::skip;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// `tcpdump -y EN10MB -ddd 'ip and tcp dst port 80'`.
const PORT_80: &str = "11
40 0 0 12
21 0 8 2048
48 0 0 23
21 0 6 6
40 0 0 20
69 4 0 8191
177 0 0 14
72 0 0 16
21 0 1 80
6 0 0 262144
6 0 0 0
";

fn tcp(port: u16, options: usize, fragment: u16) -> Vec<u8> {
    let mut frame = vec![0; 14 + 20 + options + 20];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45 + options as u8 / 4;
    frame[20..22].copy_from_slice(&fragment.to_be_bytes());
    frame[23] = 6;
    let at = 34 + options + 2;
    frame[at..at + 2].copy_from_slice(&port.to_be_bytes());
    frame
}

#[test]
fn a_program_of_tcpdumps_matches_what_it_says() {
    let filter = PacketFilter::parse(PORT_80.as_bytes()).unwrap();
    for (frame, is_match) in [
        (tcp(80, 0, 0), true),
        (tcp(80, 40, 0), true),
        (tcp(81, 0, 0), false),
        (tcp(80, 0, 1), false),
        (tcp(80, 0, 0)[..36].to_vec(), false),
        (Vec::new(), false),
    ] {
        assert_eq!(filter.matches(&frame, frame.len()), is_match, "{frame:?}");
    }
}

/// The program in binary, as `struct sock_filter`.
fn binary(program: &[Instruction]) -> Vec<u8> {
    let bytes = |i: &Instruction| [&i.code.to_ne_bytes()[..], &[i.jt, i.jf], &i.k.to_ne_bytes()].concat();
    program.iter().flat_map(bytes).collect()
}

#[test]
fn both_forms_are_the_same_program() {
    let instruction = |line: &str| {
        let n: Vec<u32> = line.split(' ').map(|n| n.parse().unwrap()).collect();
        Instruction { code: n[0] as u16, jt: n[1] as u8, jf: n[2] as u8, k: n[3] }
    };
    let program: Vec<_> = PORT_80.lines().skip(1).map(instruction).collect();
    let text = PacketFilter::parse(PORT_80.as_bytes()).unwrap();
    let raw = PacketFilter::parse(&binary(&program)).unwrap();
    assert_eq!(format!("{text:?}"), format!("{raw:?}"));
    // The length is the whole frame's, not the head's.
    let long = PacketFilter::parse(b"4\n128 0 0 0\n37 0 1 1000\n6 0 0 1\n6 0 0 0").unwrap();
    assert!(long.matches(&[0; 256], 1001) && !long.matches(&[0; 256], 1000));
}

#[test]
fn what_is_no_program_is_refused() {
    let many = format!("4097\n{}", "6 0 0 0\n".repeat(4097));
    for (text, why) in [
        ("", "it is empty"),
        ("\n\n", "it is empty"),
        ("2\n6 0 0 0", "line 1 says 2 instructions, and 1 follow"),
        ("1\n6 0 0 0\n6 0 0 0", "line 1 says 1 instructions, and 2 follow"),
        ("1\n6 0 0", "line 2 is not code, jt, jf and k"),
        ("1\n6 0 256 0", "line 2 is not"),
        ("1\n6 0 0 4294967296", "line 2 is not"),
        ("1 6 0 0 0", "line 1 is not the number"),
        ("0", "it has 0 instructions"),
        ("( a filter )", "it has neither"),
        ("\x7fELF\x02\x01\x01", "it is an ELF object (eBPF)"),
        (&many, "it has 4097 instructions"),
        ("1\n40 0 0 12", "instruction 0: the last one does not return"),
        // Jumps: beyond the end, and back by a number that is one below 0.
        ("2\n5 0 0 1\n6 0 0 0", "instruction 0: it jumps to instruction 2, and there are 2"),
        ("2\n5 0 0 4294967294\n6 0 0 0", "instruction 0: it jumps to instruction 4294967295"),
        ("2\n21 0 1 6\n6 0 0 0", "instruction 0: it jumps to instruction 2"),
        // Loads that no head has.
        ("2\n48 0 0 256\n6 0 0 0", "instruction 0: it reads byte 256, and a hook sees the first 256"),
        ("2\n32 0 0 253\n6 0 0 0", "it reads byte 253"),
        ("2\n177 0 0 256\n6 0 0 0", "it reads byte 256"),
        ("2\n48 0 0 4294963248\n6 0 0 0", "it loads what Linux stores beside a packet"),
        ("2\n96 0 0 16\n6 0 0 0", "it uses word 16 of memory, which has 16 words"),
        ("2\n2 0 0 16\n6 0 0 0", "it uses word 16 of memory"),
        ("2\n52 0 0 0\n6 0 0 0", "it divides by 0"),
        ("2\n100 0 0 32\n6 0 0 0", "it shifts by 32 bits"),
        ("2\n255 0 0 0\n6 0 0 0", "code 0x00ff is unknown"),
        ("1\n14 0 0 0", "code 0x000e is unknown"),
    ] {
        let said = match PacketFilter::parse(text.as_bytes()) {
            Err(e) => e.to_string(),
            Ok(filter) => panic!("{text:?} is {filter:?}"),
        };
        assert!(said.starts_with(why) || said.contains(&format!(": {why}")), "{text:?}: {said}");
    }
    let of_size = |n| PacketFilter::parse(&vec![b'1'; n]).unwrap_err().to_string();
    assert!(of_size(256 * 1024 + 1).contains("longer than any program"));
    assert!(PacketFilter::read(Path::new("/nowhere")).unwrap_err().to_string().contains("No such file"));
}

const CODES: &[u16] = &[
    0x00, 0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0x60, 0x80, 0x01, 0x61, 0x81, 0xb1, 0x02, 0x03, 0x04, 0x0c,
    0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3c, 0x44, 0x4c, 0x54, 0x5c, 0x64, 0x6c, 0x74, 0x7c, 0x84, 0x94, 0x9c,
    0xa4, 0xac, 0x05, 0x15, 0x1d, 0x25, 0x2d, 0x35, 0x3d, 0x45, 0x4d, 0x06, 0x16, 0x07, 0x87,
];

/// Any program, mostly a valid one. The first words of its memory are written first, because Linux
/// refuses a program that could read one before.
fn any_program(dice: &mut Dice) -> Vec<Instruction> {
    let n = 3 + dice.below(40);
    let mut program: Vec<_> = (0..2).map(|k| Instruction { code: 2, jt: 0, jf: 0, k }).collect();
    while program.len() < n {
        let code = if dice.below(400) == 0 { dice.below(0x200) as u16 } else { dice.one_of(CODES) };
        let left = n - program.len();
        let skipped = |dice: &mut Dice| if dice.below(200) == 0 { left } else { dice.below(left.min(4)) };
        let (jt, jf) = (skipped(dice) as u8, skipped(dice) as u8);
        let k = match code {
            0x02 | 0x03 | 0x60 | 0x61 => {
                if dice.below(100) == 0 {
                    16
                } else {
                    dice.below(2) as u32
                }
            }
            0x05 => skipped(dice) as u32,
            0x64 | 0x74 => (dice.below(32) + if dice.below(100) == 0 { 8 } else { 0 }) as u32,
            0x20 | 0x28 | 0x30 | 0x40 | 0x48 | 0x50 | 0xb1 => dice.below(90) as u32,
            _ if dice.below(3) > 0 => dice.below(20) as u32,
            _ => (dice.below(1 << 16) as u32) << 16 | dice.below(1 << 16) as u32,
        };
        program.push(Instruction { code, jt, jf, k });
    }
    program.push(Instruction { code: 0x16, jt: 0, jf: 0, k: 0 });
    program
}

/// A socket with a filter that the kernel runs.
fn attach(to: &UnixDatagram, program: &[Instruction]) -> io::Result<()> {
    let bytes = binary(program);
    let words: Vec<libc::sock_filter> = program
        .iter()
        .map(|&Instruction { code, jt, jf, k }| libc::sock_filter { code, jt, jf, k })
        .collect();
    assert_eq!(size_of_val(&*words), bytes.len());
    let all = libc::sock_fprog { len: words.len() as u16, filter: words.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the program, whose length is said, and writes nothing there.
    let done = unsafe {
        let (socket, len) = (libc::SOL_SOCKET, size_of_val(&all) as libc::socklen_t);
        libc::setsockopt(to.as_raw_fd(), socket, libc::SO_ATTACH_FILTER, (&raw const all).cast(), len)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// We accept the programs that Linux accepts, and refuse those that it refuses; for each packet
/// both give the same result.
#[test]
fn any_program_does_as_in_linux() {
    let probe = [Instruction { code: 6, jt: 0, jf: 0, k: 1 }];
    let (_, there) = UnixDatagram::pair().unwrap();
    if let Err(e) = attach(&there, &probe) {
        return skip(format_args!("this kernel takes no filter: {e}"));
    }
    let dice = &mut Dice::new(2029);
    let (mut run, mut matches, mut refused) = (0, 0, 0);
    for _ in 0..4000 {
        let program = any_program(dice);
        let (here, there) = UnixDatagram::pair().unwrap();
        there.set_nonblocking(true).unwrap();
        let (theirs, ours) = (attach(&there, &program), PacketFilter::parse(&binary(&program)));
        assert_eq!(theirs.is_ok(), ours.is_ok(), "{program:?}: {theirs:?}, {ours:?}");
        let Ok(ours) = ours else {
            refused += 1;
            continue;
        };
        for _ in 0..4 {
            let packet: Vec<u8> = (0..1 + dice.below(120)).map(|_| dice.below(256) as u8).collect();
            here.send(&packet).unwrap();
            let theirs = there.recv(&mut [0; 256]).is_ok();
            assert_eq!(ours.matches(&packet, packet.len()), theirs, "{program:?} of {packet:?}");
            (run, matches) = (run + 1, matches + usize::from(theirs));
        }
    }
    assert!(
        run > 4000 && matches > 500 && run - matches > 500 && refused > 50,
        "{run}, {matches}, {refused}"
    );
}

/// Whatever bytes a file has: it is refused, or it ends on any head.
#[test]
fn any_file_is_refused_or_ends() {
    let dice = &mut Dice::new(7);
    let mut taken = 0;
    for _ in 0..20_000 {
        let n = 8 * (1 + dice.below(6));
        let mut file: Vec<u8> =
            (0..n).map(|_| dice.one_of(&[0, 0, 0, 1, 2, 5, 6, 21, 40, 48, 80, 177, 255])).collect();
        file[n - 8..][..2].copy_from_slice(&6u16.to_ne_bytes());
        if let Ok(filter) = PacketFilter::parse(&file) {
            taken += 1;
            for len in [0, 1, 60, 256] {
                filter.matches(&vec![0xFF; len], 65535);
            }
        }
    }
    assert!(taken > 100, "{taken}");
}
