//! The stack frames of an object's functions, and the number of places where it can panic.
//!
//! ```text
//!   objdump -d --> function --sub N,%rsp--> bytes, without saved registers      above its limit? it is named
//!              |-> calls and jumps to functions that panic        more than before? the object is refused
//!              |          |-> in those alone that C's calls for a frame lead to: a bound of their own
//!              |          '-> all of them, by function             NAME.panics, beside the object
//!              '-> calls that lead back to their function         the object is refused
//! ```
//! Calls through a table (a `dyn` type's functions) are not followed; those for frames are named
//! (`PORT`).
//!
//! rustc has no `-Wframe-larger-than`, which the kernel's build gives to our C (decision 0050).
//!
//! A kernel's stack has 16 KiB for all that is called, interrupts included. The frames of a chain
//! of calls add up, so each is bounded: those that a frame's way goes through more tightly. A
//! function that calls itself, or that its callees call, has any number of frames: a sort of a list
//! of which a guest chose the order had 28, and ended the kernel.

use crate::workspace::{Workspace, output, write};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Stack limit of a function that runs per frame: of those that [`CALLED_FOR_FRAMES`] and the
/// [`PORT`] lead to, and of those with certain names.
const DATA_PATH_BYTES: u64 = 1024;
const FRAME_BYTES: u64 = 2048;

/// Last parts of the names of functions that run for each frame.
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

/// Prefixes of the functions that are called for frames: by C, and by the self-test. A back's poll
/// makes a turn every few batches, and asks when to be polled again before it ends.
const CALLED_FOR_FRAMES: [&str; 7] = [
    "pregrant_tx_",
    "pregrant_rx_",
    "pregrant_back_poll_",
    "pregrant_back_queue_of",
    "pregrant_back_turn",
    "pregrant_back_wakes_at",
    "pregrant_selftest_back_poll_",
];

/// A part of the names of functions that these call through a table: the port's.
const PORT: &str = "back::port::Skbs as";

/// A type that has a function with a name of [`DATA_PATH`] which runs only at set-up: its functions
/// do not count.
const SET_UP: &str = "front::queue::Parts<";

/// For each object: the largest allowed number of calls of panicking functions, and how many of
/// them code for frames can reach. The front's and the back's numbers may only fall; the self-test
/// contains both.
const PANICS: &[(&str, Most)] = &[
    ("front", Most { all: 63, for_frames: 2 }),
    ("back", Most { all: 21, for_frames: 0 }),
    ("selftest", Most { all: 128, for_frames: 1 }),
];

struct Most {
    all: usize,
    for_frames: usize,
}

/// Parts of the names of functions that panic.
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

#[derive(Debug, Default, PartialEq, Eq)]
struct Function {
    name: String,
    bytes: u64,
    panics: usize,
    /// Indices of functions that panic, which this one calls or jumps to, once for each place.
    panic_calls: Vec<usize>,
    /// Indices of functions that this one calls, jumps to, and takes the address of.
    calls: Vec<usize>,
    jumps: Vec<usize>,
    addresses: Vec<usize>,
}

impl Function {
    fn leads_to(&self) -> impl Iterator<Item = usize> {
        self.goes_to().chain(self.addresses.iter().copied())
    }

    fn goes_to(&self) -> impl Iterator<Item = usize> {
        self.calls.iter().chain(&self.jumps).copied()
    }
}

/// Refuses an object with a function whose stack frame is too large, or that panics from more
/// places than allowed.
pub(super) fn check(w: &Workspace, object: &Path) -> Result<(), String> {
    let code = output(w.program("objdump").args(["-dr", "-C", "--no-show-raw-insn"]).arg(object))?;
    let functions = read(&code);
    let name = object.file_stem().unwrap_or_default().to_string_lossy();
    let Some(largest) = functions.iter().max_by_key(|f| f.bytes) else {
        return Err(format!("{}: no function", object.display()));
    };
    let all: Vec<&Function> = functions.iter().collect();
    let for_frames = for_frames(&functions).map_err(|why| format!("{}: {why}", object.display()))?;
    let panics = |of: &[&Function]| of.iter().map(|f| f.panics).sum::<usize>();
    println!(
        "{name}: the largest frame has {} bytes ({}); {} calls that panic, {} of them in {} functions for frames, \
         whose largest frame has {} bytes",
        largest.bytes,
        largest.name,
        panics(&all),
        panics(&for_frames),
        for_frames.len(),
        for_frames.iter().map(|f| f.bytes).max().unwrap_or(0),
    );
    let list = object.with_extension("panics");
    write(&list, listed(&functions, &for_frames))?;
    println!("{name}: the calls that panic, by function: {}", list.display());
    let limits = all.iter().map(|f| (limit(&f.name), f));
    let limits = limits.chain(for_frames.iter().map(|f| (DATA_PATH_BYTES, f)));
    let too_large: BTreeMap<&str, String> = limits
        .filter(|(most, f)| f.bytes > *most)
        .map(|(most, f)| (&*f.name, format!("{} bytes of stack, {most} may: {}", f.bytes, f.name)))
        .collect();
    let mut wrong: Vec<String> = too_large.into_values().collect();
    let none = Most { all: 0, for_frames: 0 };
    let most = PANICS.iter().find(|(of, _)| *of == name).map_or(&none, |(_, most)| most);
    for (what, mut of, most) in
        [("that panic", all, most.all), ("that panic for a frame", for_frames, most.for_frames)]
    {
        let found = panics(&of);
        if found > most {
            of.sort_by_key(|f| std::cmp::Reverse(f.panics));
            let first = of.iter().take_while(|f| f.panics > 0).take(20);
            wrong.push(format!("{found} calls {what}, {most} may (PANICS, {}):", file!()));
            wrong.extend(first.map(|f| format!("  {} in {}", f.panics, f.name)));
        }
    }
    wrong.extend(recursive(&functions).into_iter().map(|(caller, callee)| match caller == callee {
        true => format!("it calls itself, so its stack has no bound: {}", caller.name),
        false => format!("it calls what leads back to it: {}, by {}", caller.name, callee.name),
    }));
    if wrong.is_empty() { Ok(()) } else { Err(format!("{}:\n{}", object.display(), wrong.join("\n"))) }
}

/// The functions that run for a frame. An error: there is none, and so none would be checked.
fn for_frames(functions: &[Function]) -> Result<Vec<&Function>, String> {
    let reached = reached(functions, |name| is_called_for_frames(name) || name.contains(PORT));
    match reached.iter().any(|f| is_called_for_frames(&f.name)) {
        true => Ok(reached),
        false => Err(format!("no function has a name of CALLED_FOR_FRAMES ({})", file!())),
    }
}

fn is_called_for_frames(name: &str) -> bool {
    CALLED_FOR_FRAMES.iter().any(|begin| name.starts_with(begin))
}

/// A line for each function that can panic, those for frames first: how often, by which functions.
fn listed(functions: &[Function], for_frames: &[&Function]) -> String {
    let is_for_frames = |f: &Function| for_frames.iter().any(|other| std::ptr::eq(*other, f));
    let mut panicking: Vec<&Function> = functions.iter().filter(|f| f.panics > 0).collect();
    panicking.sort_by_key(|f| (std::cmp::Reverse((is_for_frames(f), f.panics)), &f.name));
    let line = |f: &Function| {
        let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
        for callee in &f.panic_calls {
            let name = functions[*callee].name.split("::<").next().unwrap_or_default();
            *kinds.entry(name.rsplit("::").next().unwrap_or(name)).or_default() += 1;
        }
        let kinds: Vec<String> = kinds.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
        let path = if is_for_frames(f) { "frames" } else { "control" };
        format!("{path} {} {} ({})\n", f.panics, f.name, kinds.join(", "))
    };
    panicking.into_iter().map(line).collect()
}

fn limit(name: &str) -> u64 {
    // Most of the core's are inlined in these.
    if is_called_for_frames(name) || name.contains(PORT) {
        return DATA_PATH_BYTES;
    }
    let is_core = name.contains("pregrant::net::") && !name.contains(SET_UP);
    // The last part of the path, without generic parameters.
    let plain = name.split("::<").next().unwrap_or(name);
    let last = plain.rsplit("::").next().unwrap_or(plain);
    if is_core && DATA_PATH.contains(&last) { DATA_PATH_BYTES } else { FRAME_BYTES }
}

/// The functions that are called from outside, by name, and all that they call.
fn reached(functions: &[Function], is_root: impl Fn(&str) -> bool) -> Vec<&Function> {
    let mut seen = vec![false; functions.len()];
    let mut next: Vec<usize> = (0..functions.len()).filter(|k| is_root(&functions[*k].name)).collect();
    while let Some(k) = next.pop() {
        // Code for a frame ends at a panic.
        if !std::mem::replace(&mut seen[k], true) && !is_panic(&functions[k].name) {
            next.extend(functions[k].leads_to());
        }
    }
    functions.iter().zip(seen).filter(|(f, seen)| *seen && !is_panic(&f.name)).map(|(f, _)| f).collect()
}

/// Calls that lead back to their own function: the caller, and the function that it calls.
fn recursive(functions: &[Function]) -> Vec<(&Function, &Function)> {
    let called: BTreeSet<usize> = functions.iter().flat_map(|f| &f.calls).copied().collect();
    let mut found = Vec::new();
    for callee in called {
        // A jump needs no stack, but what is jumped to may call.
        let (mut seen, mut next) = (vec![false; functions.len()], vec![callee]);
        while let Some(k) = next.pop() {
            if !std::mem::replace(&mut seen[k], true) {
                next.extend(functions[k].goes_to());
            }
        }
        let callers = functions.iter().zip(seen).filter(|(f, seen)| *seen && f.calls.contains(&callee));
        found.extend(callers.map(|(caller, _)| (caller, &functions[callee])));
    }
    found
}

fn is_panic(name: &str) -> bool {
    PANIC.iter().any(|word| name.contains(word))
}

/// The functions of a listing with relocations.
fn read(code: &str) -> Vec<Function> {
    let mut functions: Vec<Function> = Vec::new();
    let mut places: BTreeMap<u64, usize> = BTreeMap::new();
    // Targets of each function's calls and jumps, and functions whose address it takes.
    let mut targets: Vec<(usize, Leads, u64)> = Vec::new();
    // The stack frame is set up at the beginning, so only that part is read for it.
    let (mut left, mut last) = (0, None);
    // A call whose target is in the instruction, unless a relocation follows: by that a function
    // calls itself.
    let mut plain = None;
    for line in code.lines() {
        targets.extend(plain.take().filter(|_| !line.contains("R_X86_64_")));
        let head = line.strip_suffix(">:").and_then(|line| line.split_once(" <"));
        if let Some((at, name)) = head {
            places.extend(hex(at).map(|at| (at, functions.len())));
            functions.push(Function { name: name.into(), ..Function::default() });
            left = 60;
            continue;
        }
        let Some(of) = functions.len().checked_sub(1) else { continue };
        if let Some(to) = in_code(line, "R_X86_64_PLT32") {
            // Relative to the end of the instruction, whose last four bytes it is.
            targets.extend(last.zip(u64::try_from(to + 4).ok()).map(|(by, to)| (of, by, to)));
            continue;
        }
        if let Some(to) = in_code(line, "R_X86_64_32S") {
            targets.extend(u64::try_from(to).map(|to| (of, Leads::Address, to)));
            continue;
        }
        let Some((_, code)) = line.split_once(":\t") else { continue };
        let (what, with) = code.split_once(' ').unwrap_or((code, ""));
        let with = with.trim();
        last = Leads::by(what);
        if last == Some(Leads::Call) {
            plain = with.split(' ').next().and_then(hex).map(|to| (of, Leads::Call, to));
        }
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
    for (of, by, to) in targets {
        let Some(&place) = places.get(&to) else { continue };
        let panics = by != Leads::Address && is_panic(&functions[place].name);
        let from = &mut functions[of];
        if panics {
            from.panics += 1;
            from.panic_calls.push(place);
        }
        match by {
            Leads::Call => from.calls.push(place),
            Leads::Jump => from.jumps.push(place),
            Leads::Address => from.addresses.push(place),
        }
    }
    functions
}

/// The ways in which code leads to a function.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leads {
    Call,
    Jump,
    Address,
}

impl Leads {
    /// Returns how an instruction leads to a function; None: it does not.
    fn by(what: &str) -> Option<Self> {
        match what {
            _ if what.starts_with("call") => Some(Self::Call),
            _ if what.starts_with('j') => Some(Self::Jump),
            _ => None,
        }
    }
}

/// The place in the code that a relocation of this kind names.
fn in_code(line: &str, kind: &str) -> Option<i64> {
    let place = line.split_once(kind)?.1.trim_start().strip_prefix(".text")?;
    let magnitude = |hex: &str| i64::from_str_radix(hex.trim_start_matches("0x"), 16).ok();
    match place.split_at_checked(1) {
        Some(("+", more)) => magnitude(more),
        Some(("-", less)) => magnitude(less).map(|less| -less),
        _ => (place.is_empty()).then_some(0),
    }
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
\t\t\t13: R_X86_64_PLT32\t.text+0x6c

0000000000000020 <pregrant_rx_receive>:
  20:\tjmp    25 <pregrant_rx_receive+0x5>
\t\t\t21: R_X86_64_PLT32\t.text-0x4
  25:\tmov    $0x0,%rdi
\t\t\t28: R_X86_64_32S\t.text+0x70

0000000000000040 <core::slice::index::slice_index_fail>:
  40:\tsub    $0x18,%rsp
  44:\tjmp    40 <core::slice::index::slice_index_fail+0x4>

0000000000000070 <pregrant::net::back::control_state::Control::resume>:
  70:\tlea    -0x3000(%rsp),%r11
  78:\tsub    $0x1000,%rsp
  80:\tsub    $0x100,%rsp
";

    #[test]
    fn frames_and_panics_are_read_from_a_listing() {
        let of = |name: &str, bytes, panics, leads_to: [&[usize]; 3]| Function {
            name: name.into(),
            bytes,
            panics,
            panic_calls: if panics > 0 { vec![2] } else { vec![] },
            calls: leads_to[0].into(),
            jumps: leads_to[1].into(),
            addresses: leads_to[2].into(),
        };
        assert_eq!(
            read(LISTING),
            [
                of("<pregrant::net::front::rx::RxFront<K>>::recv", 0x418, 1, [&[2, 3], &[], &[]]),
                of("pregrant_rx_receive", 0, 0, [&[], &[0], &[3]]),
                of("core::slice::index::slice_index_fail", 0x18, 0, [&[], &[], &[]]),
                of("pregrant::net::back::control_state::Control::resume", 0x3000 + 0x100, 0, [&[], &[], &[]]),
            ]
        );
    }

    #[test]
    fn what_panics_is_listed_by_function() {
        let functions = read(LISTING);
        let recv = "1 <pregrant::net::front::rx::RxFront<K>>::recv (1 slice_index_fail)\n";
        assert_eq!(listed(&functions, &[]), format!("control {recv}"));
        assert_eq!(listed(&functions, &[&functions[0]]), format!("frames {recv}"));
    }

    #[test]
    fn what_a_frame_can_reach_is_counted_apart() {
        let functions = read(LISTING);
        let names = |begin: &str| {
            let reached = reached(&functions, |name| name.starts_with(begin));
            reached.iter().map(|f| f.name.rsplit("::").next().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(names("pregrant_rx_"), ["recv", "pregrant_rx_receive", "resume"]);
        assert_eq!(names("pregrant::net::back"), ["resume"]);
    }

    #[test]
    fn an_object_without_calls_for_frames_is_refused() {
        assert_eq!(for_frames(&read(LISTING)).map(|all| all.len()), Ok(3));
        for renamed in ["pregrant_receive", "<pregrant_linux::back::port::Skbs as FramePort>::rx_burst"] {
            let functions = read(&LISTING.replace("pregrant_rx_receive", renamed));
            assert!(for_frames(&functions).unwrap_err().contains("CALLED_FOR_FRAMES"), "{renamed}");
        }
    }

    /// What the port's table leads to counts, beside what is called by name.
    #[test]
    fn the_ports_functions_are_for_frames() {
        let with =
            "\n0000000000000090 <<pregrant_linux::back::port::Skbs as FramePort>::rx_burst>:\n  90:\tret\n";
        let functions = read(&format!("{LISTING}{with}"));
        assert_eq!(for_frames(&functions).map(|all| all.len()), Ok(4));
        assert_eq!(limit(&functions[4].name), DATA_PATH_BYTES);
    }

    /// A call by itself has no relocation; of those in a circle one may be a jump.
    #[test]
    fn functions_that_call_themselves_are_found() {
        let listing = "
0000000000000000 <quicksort>:
   0:\tsub    $0x18,%rsp
   4:\tjmp    0 <quicksort>
   6:\tcall   0 <quicksort>
   b:\tcall   10 <there>
\t\t\tc: R_X86_64_PLT32\t.text+0xc

0000000000000010 <there>:
  10:\tcall   15 <there+0x5>
\t\t\t11: R_X86_64_PLT32\t.text+0x1c
  15:\tjmp    10 <there>

0000000000000020 <back>:
  20:\tjmp    25 <back+0x5>
\t\t\t21: R_X86_64_PLT32\t.text+0xc
  25:\tmov    $0x0,%rdi
\t\t\t28: R_X86_64_32S\t.text

0000000000000030 <loop>:
  30:\tjmp    30 <loop>
  32:\tcall   37 <loop+0x7>
\t\t\t33: R_X86_64_PLT32\t.text+0x1c
";
        let functions = read(listing);
        let found = recursive(&functions);
        let names: Vec<_> = found.iter().map(|(by, to)| (by.name.as_str(), to.name.as_str())).collect();
        assert_eq!(names, [("quicksort", "quicksort"), ("there", "back")]);
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
