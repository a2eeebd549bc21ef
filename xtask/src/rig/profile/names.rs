//! The names of the functions that were executed: those of Xen and of our program by `nm`, those of
//! dom0's kernel from its own list.

use super::super::image::tool_output;
use super::super::{Rig, packages};
use super::group::{self, Group};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Addresses of processes are below this one.
const PROCESSES_END: u64 = 1 << 47;

pub(super) struct Symbol {
    pub(super) at: u64,
    pub(super) name: String,
    pub(super) group: Group,
}

pub(super) struct Symbols(Vec<Symbol>);

impl Symbols {
    pub(super) fn new(found: impl Iterator<Item = (u64, String, Group)>) -> Self {
        let mut all: Vec<Symbol> = found.map(|(at, name, group)| Symbol { at, name, group }).collect();
        // If a place has several names, a plain one is preferred.
        let key = |s: &Symbol| (s.at, s.name.starts_with('_'), s.name.clone());
        all.sort_by_cached_key(key);
        Self(all)
    }

    /// Finds the last symbol that begins at or before an address.
    pub(super) fn find(&self, at: u64) -> Option<&Symbol> {
        let after = self.0.partition_point(|symbol| symbol.at <= at);
        let found = self.0.get(after.checked_sub(1)?)?;
        self.0.get(self.0.partition_point(|symbol| symbol.at < found.at))
    }
}

/// The symbols of all that was executed in dom0 and in Xen, and in guests.
pub(super) struct Names {
    pub(super) xen: Symbols,
    pub(super) kernel: Symbols,
    pub(super) ours: Symbols,
    /// The symbols of dom0's kernel where a kind of back has a module loaded.
    pub(super) modules: BTreeMap<String, Symbols>,
    /// The symbols of a guest with each kind of back.
    pub(super) guests: BTreeMap<String, Symbols>,
}

impl Names {
    /// Finds the function of a guest that an instruction belongs to; `by` is the kind of back.
    pub(super) fn find_guests(&self, at: u64, is_xen: bool, by: &str) -> (Group, &str) {
        let symbols = match self.guests.get(by) {
            _ if is_xen => &self.xen,
            _ if at < PROCESSES_END => return (group::OTHERS, group::OTHERS),
            guests => guests.unwrap_or(&self.kernel),
        };
        symbols.find(at).map_or((group::UNKNOWN, "?"), |symbol| (symbol.group, &symbol.name))
    }

    /// Finds the function of dom0 that an instruction belongs to. `by` is the kind of back, `base`
    /// address and length of our program.
    pub(super) fn find(&self, at: u64, is_xen: bool, by: &str, base: Option<&(u64, u64)>) -> (Group, &str) {
        let (symbols, at) = match base {
            _ if is_xen => (&self.xen, at),
            _ if at >= PROCESSES_END => (self.modules.get(by).unwrap_or(&self.kernel), at),
            Some((base, len)) if (*base..base + len).contains(&at) => (&self.ours, at - base),
            _ => return (group::OTHERS, group::OTHERS),
        };
        symbols.find(at).map_or((group::UNKNOWN, "?"), |symbol| (symbol.group, &symbol.name))
    }
}

/// Returns the symbols of Xen as lines of `nm`.
fn lines_of_xen(rig: &Rig<'_>) -> Result<String, String> {
    let release = rig.combination.dom0;
    let program = packages::root(rig, release).join(format!("boot/xen-{}-amd64.efi", release.xen));
    let text = tool_output(Command::new("nm").arg(program))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The address of a function of Xen by its full name, since parts that the compiler splits off
/// (`.cold`) are elsewhere.
pub(super) fn place_in_xen(rig: &Rig<'_>, function: &str) -> Result<u64, String> {
    let lines = lines_of_xen(rig)?;
    let found = code_symbols(&lines).find(|(_, name)| *name == function);
    found.map(|(at, _)| at).ok_or_else(|| format!("Xen has no function {function}"))
}

pub(super) fn of_xen(rig: &Rig<'_>) -> Result<Symbols, String> {
    let lines = lines_of_xen(rig)?;
    let named = |(at, name): (u64, &str)| {
        // Code after the last symbol: each processor's entry code for system calls, and other code
        // that is generated at run time.
        let name = if name.starts_with("__ctors") { "stubs" } else { group::plain(name) };
        (at, name.to_string(), group::of_xen(name))
    };
    Ok(Symbols::new(code_symbols(&lines).map(named)))
}

pub(super) fn of_program(program: &Path) -> Result<Symbols, String> {
    let text = tool_output(Command::new("nm").arg("-C").arg(program))?;
    let named = |(at, name): (u64, &str)| (at, name.to_string(), group::of_ours(name));
    let symbols = Symbols::new(code_symbols(&String::from_utf8_lossy(&text)).map(named));
    if symbols.0.is_empty() { Err(format!("{} has no symbols", program.display())) } else { Ok(symbols) }
}

/// The symbols of dom0's kernel, from gzipped lines in base64 of the form "ADDRESS NAME", with a
/// module's name in brackets.
pub(super) fn of_kernel(packed: &str) -> Result<Symbols, String> {
    let text = unpacked(packed).ok_or("dom0 did not print the names of its kernel, or not all")?;
    Ok(Symbols::new(text.lines().filter_map(kernel_symbol)))
}

/// Returns the symbols of dom0's kernel with these modules: a guest's, whose kernel is dom0's, or
/// those that dom0 has since.
pub(super) fn with_modules(dom0s: &str, modules: &str) -> Result<Symbols, String> {
    let (kernel, modules) = unpacked(dom0s)
        .zip(unpacked(modules))
        .ok_or("dom0 or the guest did not print the names of its modules, or not all")?;
    let without_modules = kernel.lines().filter(|line| !line.ends_with(']'));
    Ok(Symbols::new(without_modules.chain(modules.lines()).filter_map(kernel_symbol)))
}

/// A line of /proc/kallsyms without its kind.
fn kernel_symbol(line: &str) -> Option<(u64, String, Group)> {
    let mut words = line.split_whitespace();
    let at = u64::from_str_radix(words.next()?, 16).ok()?;
    let (name, module) = (words.next()?, words.next().unwrap_or_default());
    let shown = format!("{} {module}", group::plain(name)).trim_end().to_string();
    Some((at, shown, group::of_kernel(name, module)))
}

fn unpacked(packed: &str) -> Option<String> {
    let mut shell = Command::new("sh");
    shell.args(["-c", "base64 -d | gzip -dc"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = shell.spawn().ok()?;
    let (mut to, packed) = (child.stdin.take()?, packed.to_string());
    let writer = std::thread::spawn(move || to.write_all(packed.as_bytes()));
    let out = child.wait_with_output().ok()?;
    let written = writer.join().is_ok_and(|w| w.is_ok());
    let is_whole = written && out.status.success() && !out.stdout.is_empty();
    is_whole.then(|| String::from_utf8_lossy(&out.stdout).into_owned())
}

/// The code symbols among the lines of nm.
fn code_symbols(text: &str) -> impl Iterator<Item = (u64, &str)> {
    text.lines().filter_map(|line| {
        let mut words = line.splitn(3, ' ');
        let at = u64::from_str_radix(words.next()?, 16).ok()?;
        matches!(words.next()?, "t" | "T" | "w" | "W").then_some((at, words.next()?))
    })
}

/// The part of a program's file that contains its code.
pub(super) struct Code {
    pub(super) offset: u64,
    /// The address of the code according to the program's symbols.
    pub(super) at: u64,
    pub(super) len: u64,
}

pub(super) fn code(program: &Path) -> Result<Code, String> {
    let text = tool_output(Command::new("readelf").arg("-lW").arg(program))?;
    // LOAD offset address (twice) length (twice) R E alignment
    let words = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| u64::from_str_radix(words.get(at)?.strip_prefix("0x")?, 16).ok();
        let is_code = words.first() == Some(&"LOAD") && words.get(7) == Some(&"E");
        is_code.then(|| Some(Code { offset: number(1)?, at: number(2)?, len: number(5)? }))?
    };
    let found = String::from_utf8_lossy(&text).lines().find_map(words);
    found.ok_or_else(|| format!("{}: readelf shows no code", program.display()))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn symbols(list: &[(u64, &str)]) -> Symbols {
        Symbols::new(list.iter().map(|(at, name)| (*at, name.to_string(), group::of_ours(name))))
    }

    #[test]
    fn an_address_is_of_the_function_that_begins_before_it() {
        let found = symbols(&[(0x20, "b"), (0x10, "a"), (0x20, "c")]);
        let name = |at| found.find(at).map(|symbol| symbol.name.as_str());
        assert_eq!(
            [0xf, 0x10, 0x1f, 0x20, 0x99].map(name),
            [None, Some("a"), Some("a"), Some("b"), Some("b")]
        );
    }

    #[test]
    fn of_nms_lines_those_of_code_count() {
        let text = "0000000000000010 t a.cold\n0000000000000020 T a\n0000000000000030 d b\n\
             0000000000000040 t c<d as e>::f\n                 U g\n";
        let found: Vec<_> = code_symbols(text).collect();
        assert_eq!(found, [(0x10, "a.cold"), (0x20, "a"), (0x40, "c<d as e>::f")]);
    }

    #[test]
    fn dom0s_names_are_all_there_or_it_is_reported() {
        // printf 'ffffffff81000000 a.part.0\nffffffffc0000000 b [tun]\n' | gzip | base64
        let packed = "H4sIAAAAAAACA0tLgwALQwMwUEjUK0gsKtEz4IJKpCUbQGWSFKJLSvNiuQAxVNUxMwAAAA==";
        let found = of_kernel(packed).unwrap();
        let name = |at| found.find(at).map(|symbol| (symbol.name.as_str(), symbol.group));
        assert_eq!(name(0xffffffff81000010).unwrap().0, "a");
        assert_eq!(name(0xffffffffc0000000), Some(("b [tun]", "tun")));
        assert!(of_kernel(&packed[..packed.len() / 2]).is_err());
        assert!(of_kernel("").is_err());
        // printf 'ffffffffc0000000 c [x]\n' | gzip | base64
        let of_guest = with_modules(packed, "H4sIAAAAAAACA0tLg4BkAwhQSFaIrojlAgAEsyIeFwAAAA==").unwrap();
        let name = |at| of_guest.find(at).map(|symbol| symbol.name.as_str());
        assert_eq!([0xffffffff81000010, 0xffffffffc0000000].map(name), [Some("a"), Some("c [x]")]);
    }
}
