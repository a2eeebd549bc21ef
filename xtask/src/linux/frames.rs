//! The stack frames of an object's functions, and the number of places where it can panic.
//!
//! ```text
//!   objdump -d --> function --sub N,%rsp--> bytes, without saved registers      above its limit? it is named
//!              '-> calls and jumps to functions that panic        more than before? the object is refused
//! ```
//! A kernel's stack has 16 KiB for all that is called, interrupts included. The frames of a chain
//! of calls add up, so each is bounded: those that a frame's way goes through more tightly.

use crate::workspace::{Workspace, output};
use std::collections::BTreeMap;
use std::path::Path;

/// Of a function that runs for frames.
const DATA_PATH_BYTES: u64 = 1024;
/// Of any other.
const FRAME_BYTES: u64 = 2048;

/// The last words of those that run for frames.
const DATA_PATH: &[&str] = &[
    "check",
    "deliver",
    "fetch",
    "fill",
    "final_check",
    "heads",
    "place",
    "poll",
    "poll_rx",
    "poll_tx",
    "post",
    "publish",
    "queue",
    "read",
    "reclaim",
    "recv",
    "recv_by_reference",
    "recv_hooked",
    "recv_long",
    "recv_run",
    "retire",
    "send",
    "send_long",
    "send_run",
    "settle",
    "take",
    "take_split",
];

/// How those functions begin that C calls for frames.
const CALLED_FOR_FRAMES: [&str; 2] = ["pregrant_tx_", "pregrant_rx_"];

/// A type with such a function that runs at set-up alone.
const SET_UP: &str = "front::queue::Parts<";

/// By object: calls of functions that end the program, at most. These numbers only fall.
const PANICS: &[(&str, usize)] = &[("front", 151), ("selftest", 591)];

/// Words of such functions' names.
const PANIC: &[&str] = &[
    "core::panicking::",
    "slice::index::slice_",
    "_fail",
    "unwrap_failed",
    "expect_failed",
    "handle_alloc_error",
    "raw_vec::handle_error",
    "assert_failed",
];

/// One function.
#[derive(Debug, PartialEq, Eq)]
struct Function {
    name: String,
    bytes: u64,
    panics: usize,
}

/// Refuses an object whose functions take too much, or that panics from more places than it may.
pub(super) fn check(w: &Workspace, object: &Path) -> Result<(), String> {
    let code = output(w.program("objdump").args(["-dr", "-C", "--no-show-raw-insn"]).arg(object))?;
    let functions = read(&code);
    let name = object.file_stem().unwrap_or_default().to_string_lossy();
    let (largest, panics) =
        (functions.iter().max_by_key(|f| f.bytes), functions.iter().map(|f| f.panics).sum::<usize>());
    let Some(largest) = largest else { return Err(format!("{}: no function", object.display())) };
    println!(
        "{name}: the largest frame has {} bytes ({}); {panics} calls that panic",
        largest.bytes, largest.name
    );
    let mut wrong: Vec<String> = functions
        .iter()
        .filter(|f| f.bytes > limit(&f.name))
        .map(|f| format!("{} bytes of stack, {} may: {}", f.bytes, limit(&f.name), f.name))
        .collect();
    let most = PANICS.iter().find(|(of, _)| *of == name).map_or(0, |(_, most)| *most);
    if panics > most {
        let mut by = functions.iter().filter(|f| f.panics > 0).collect::<Vec<_>>();
        by.sort_by_key(|f| std::cmp::Reverse(f.panics));
        let first = by.iter().take(10).map(|f| format!("  {} in {}", f.panics, f.name));
        wrong.push(format!("{panics} calls that panic, {most} may (PANICS, {}):", file!()));
        wrong.extend(first);
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("{}:\n{}", object.display(), wrong.join("\n"))) }
}

fn limit(name: &str) -> u64 {
    // Most of the core's are inlined in these.
    if CALLED_FOR_FRAMES.iter().any(|prefix| name.starts_with(prefix)) {
        return DATA_PATH_BYTES;
    }
    let is_core = name.contains("pregrant::net::") && !name.contains(SET_UP);
    // Behind the last colon, without what it is generic over.
    let plain = name.split("::<").next().unwrap_or(name);
    let last = plain.rsplit("::").next().unwrap_or(plain);
    if is_core && DATA_PATH.contains(&last) { DATA_PATH_BYTES } else { FRAME_BYTES }
}

/// The functions of a listing with relocations.
fn read(code: &str) -> Vec<Function> {
    let mut functions: Vec<Function> = Vec::new();
    let mut places: BTreeMap<u64, String> = BTreeMap::new();
    // By function: where it calls or jumps to, in the object's code.
    let mut targets: Vec<(usize, u64)> = Vec::new();
    // How much of a function is read for its frame: it is made at the beginning.
    let (mut left, mut calls) = (0, false);
    for line in code.lines() {
        let head = line.strip_suffix(">:").and_then(|line| line.split_once(" <"));
        if let Some((at, name)) = head {
            functions.push(Function { name: name.into(), bytes: 0, panics: 0 });
            places.extend(hex(at).map(|at| (at, name.into())));
            left = 60;
            continue;
        }
        let Some(of) = functions.len().checked_sub(1) else { continue };
        if let Some((_, to)) = line.split_once("R_X86_64_PLT32\t.text+") {
            // Counted from the end of the instruction, whose last four bytes it is.
            targets.extend(hex(to).filter(|_| calls).map(|to| (of, to + 4)));
            continue;
        }
        let Some((_, code)) = line.split_once(":\t") else { continue };
        let (what, with) = code.split_once(' ').unwrap_or((code, ""));
        let with = with.trim();
        calls = what.starts_with("call") || what.starts_with('j');
        if left > 0 {
            left -= 1;
            functions[of].bytes += match what {
                "sub" => {
                    with.strip_prefix('$').and_then(|with| hex(with.strip_suffix(",%rsp")?)).unwrap_or(0)
                }
                // A large frame is touched page by page, down to here.
                "lea" => {
                    let down = with.strip_prefix('-').and_then(|with| hex(with.strip_suffix("(%rsp),%r11")?));
                    down.map_or(0, |bytes| bytes.saturating_sub(4096))
                }
                _ => 0,
            };
        }
    }
    for (of, to) in targets {
        let panics = places.get(&to).is_some_and(|name| PANIC.iter().any(|word| name.contains(word)));
        functions[of].panics += usize::from(panics);
    }
    functions
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "
0000000000000000 <<pregrant::net::front::rx::RxFront<K>>::recv>:
   0:\tpush   %rbp
   1:\tsub    $0x418,%rsp
   8:\tcall   d <<pregrant::net::front::rx::RxFront<K>>::recv+0xd>
\t\t\t9: R_X86_64_PLT32\t.text+0x3c
   d:\tja     8 <<pregrant::net::front::rx::RxFront<K>>::recv+0x8>
  12:\tcall   17 <<pregrant::net::front::rx::RxFront<K>>::recv+0x17>
\t\t\t13: R_X86_64_PLT32\t.text+0x4c

0000000000000040 <core::slice::index::slice_index_fail>:
  40:\tsub    $0x18,%rsp
  44:\tjmp    40 <core::slice::index::slice_index_fail+0x4>

0000000000000050 <pregrant::net::back::control_state::Control::resume>:
  50:\tlea    -0x3000(%rsp),%r11
  58:\tsub    $0x1000,%rsp
  60:\tsub    $0x100,%rsp
";

    #[test]
    fn frames_and_panics_are_read_from_a_listing() {
        let of = |name: &str, bytes, panics| Function { name: name.into(), bytes, panics };
        assert_eq!(
            read(LISTING),
            [
                of("<pregrant::net::front::rx::RxFront<K>>::recv", 0x418, 1),
                of("core::slice::index::slice_index_fail", 0x18, 0),
                of("pregrant::net::back::control_state::Control::resume", 0x3000 + 0x100, 0),
            ]
        );
    }

    #[test]
    fn what_runs_for_frames_has_less() {
        assert_eq!(limit("<pregrant::net::front::rx::RxFront<K>>::recv"), DATA_PATH_BYTES);
        assert_eq!(limit("<pregrant::net::front::rx::RxFront<K>>::recv::<S>"), DATA_PATH_BYTES);
        assert_eq!(limit("<pregrant::net::front::vif::FrontVif<K>>::set_up"), FRAME_BYTES);
        assert_eq!(limit("<pregrant::net::front::queue::Parts<K>>::take"), FRAME_BYTES);
        assert_eq!(limit("core::slice::sort::read"), FRAME_BYTES);
        assert_eq!(limit("pregrant_tx_send"), DATA_PATH_BYTES);
        assert_eq!(limit("pregrant_rx_receive"), DATA_PATH_BYTES);
        assert_eq!(limit("pregrant_front_step"), FRAME_BYTES);
    }
}
