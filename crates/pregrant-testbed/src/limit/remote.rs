//! `process_vm_readv` in batches out of another process: what grant copy on the loopback stands on.
//!
//! The other process (the target) maps some memory as a guest of the loopback does, says where on
//! its standard output, and sleeps until its standard input ends; so it goes when the reader goes.
//! It is started by the reader, which therefore may read it even where ptrace is limited to one's
//! own children.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::{Measured, joined, pin};
use crate::cpu_time;

pub const PIECES: usize = 64;
/// Length of the target's memory in bytes: a page for each slot of a ring.
const TARGET_BYTES: usize = 256 * PAGE;
const PAGE: usize = 4096;
/// The byte that fills the target's memory.
const FILL: u8 = 0x5A;

/// Memory like that of a guest on the loopback: a shared mapping of a memfd.
struct TargetMemory(NonNull<u8>);

impl TargetMemory {
    fn new() -> io::Result<Self> {
        let mut file = File::from(memfd_create("pregrant-limit", MemfdFlags::CLOEXEC)?);
        file.write_all(&vec![FILL; TARGET_BYTES])?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists;
        // the file is as long.
        let base = unsafe { mmap(std::ptr::null_mut(), TARGET_BYTES, prot, flags, &file, 0) }?;
        Ok(Self(NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?))
    }

    fn start(&self) -> usize {
        self.0.as_ptr() as usize
    }
}

impl Drop for TargetMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, whole; no one refers to it. A failure would leave it
        // mapped.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), TARGET_BYTES) };
    }
}

/// Runs the target's side: prints the address of its memory, and waits for the end of `input`.
pub fn serve_target(mut input: impl Read, mut output: impl Write) -> io::Result<()> {
    let memory = TargetMemory::new()?;
    writeln!(output, "{}", memory.start())?;
    output.flush()?;
    // The reader may use the memory until its end of the pipe is closed.
    io::copy(&mut input, &mut io::sink())?;
    Ok(())
}

/// A process whose memory is read.
#[derive(Debug)]
pub struct Target {
    child: Child,
    start: usize,
}

impl Target {
    /// Starts `command`, which has to call [`serve_target`] with its standard input and output.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut line = String::new();
        let said = BufReader::new(output).read_line(&mut line);
        let mut target = Self { child, start: 0 };
        said?;
        target.start = line.trim().parse().map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidData, format!("the process to read from said {line:?}"))
        })?;
        Ok(target)
    }

    /// Reads fragments of `size` bytes (1 to 4096), 64 in a call, each from another page, on
    /// `core`.
    pub fn read(&self, core: usize, size: usize, run_for: Duration) -> io::Result<Measured> {
        if !(1..=PAGE).contains(&size) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "pieces of 1 to 4096 bytes"));
        }
        let pid = self.child.id() as libc::pid_t;
        let start = self.start;
        joined(std::thread::scope(|scope| {
            scope.spawn(|| read_pieces(pid, start, core, size, run_for)).join()
        }))
    }

    /// Returns an error with the reason if the process has ended. Bytes that were read from it must
    /// then not be trusted.
    pub fn check_alive(&mut self) -> io::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(io::Error::other(format!(
                "the process that is read from (pid {}) ended early ({status})",
                self.child.id()
            ))),
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // The end of its input is its end; a target that does not see it is killed.
        drop(self.child.stdin.take());
        for _ in 0..200 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_pieces(
    pid: libc::pid_t,
    start: usize,
    core: usize,
    size: usize,
    run_for: Duration,
) -> io::Result<Measured> {
    pin(core)?;
    let stride = size.next_multiple_of(64);
    let mut arena = vec![0u8; stride * PIECES];
    // Whole batches of pages, in an order that neither the kernel nor the caches can guess from the
    // last one.
    let pages = TARGET_BYTES / PAGE;
    let mut order: Vec<usize> = (0..pages).collect();
    let mut dice = 1u64;
    for i in (1..pages).rev() {
        dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        order.swap(i, (dice >> 33) as usize % (i + 1));
    }
    let remote: Vec<libc::iovec> = order
        .iter()
        .map(|page| libc::iovec { iov_base: (start + page * PAGE) as *mut libc::c_void, iov_len: size })
        .collect();
    let local: Vec<libc::iovec> = arena
        .chunks_exact_mut(stride)
        .map(|piece| libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: size })
        .collect();

    let (began, cpu) = (Instant::now(), cpu_time::of_this_thread());
    let mut calls = 0u64;
    loop {
        for batch in remote.chunks_exact(PIECES) {
            // SAFETY: `local` holds PIECES vectors of `size` bytes inside `arena`, which outlives
            // the call and is not otherwise used meanwhile; the remote vectors are plain numbers to
            // this process, which the kernel checks.
            let got = unsafe {
                libc::process_vm_readv(pid, local.as_ptr(), PIECES as _, batch.as_ptr(), PIECES as _, 0)
            };
            if got < 0 {
                return Err(io::Error::last_os_error());
            }
            if got as usize != size * PIECES {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    format!("process_vm_readv gave {got} bytes of {}", size * PIECES),
                ));
            }
            calls += 1;
        }
        let elapsed = began.elapsed();
        if elapsed >= run_for {
            let giver_cpu_ns = cpu_time::of_this_thread() - cpu;
            if arena.chunks_exact(stride).any(|piece| piece[..size].iter().any(|b| *b != FILL)) {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "process_vm_readv gave wrong bytes"));
            }
            return Ok(Measured {
                frames: calls * PIECES as u64,
                seconds: elapsed.as_secs_f64(),
                giver_cpu_ns,
                taker_cpu_ns: 0,
                syscalls: calls,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_says_where_its_memory_is_and_ends_with_its_input() {
        let mut said = Vec::new();
        serve_target(io::empty(), &mut said).unwrap();
        let start: usize = String::from_utf8(said).unwrap().trim().parse().unwrap();
        assert!(start > 0 && start.is_multiple_of(PAGE));
    }

    #[test]
    fn a_process_that_does_not_speak_the_protocol_is_an_error() {
        let error = Target::start(&mut Command::new("true")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn pieces_are_read_and_checked() {
        // This process reads itself: the call is the same.
        let memory = TargetMemory::new().unwrap();
        let core = crate::limit::cores().unwrap()[0];
        let pid = std::process::id() as libc::pid_t;
        for size in [1, 64, 1500, PAGE] {
            let m = read_pieces(pid, memory.start(), core, size, Duration::from_millis(2)).unwrap();
            assert_eq!(m.frames, m.syscalls * PIECES as u64);
        }
        drop(memory);
        let nowhere = read_pieces(pid, 0, core, 64, Duration::ZERO).unwrap_err();
        assert_eq!(nowhere.raw_os_error(), Some(libc::EFAULT));
    }
}
