//! `pregrant blkfront`: a guest's disk as a file, for programs that know nothing of Xen.
//!
//! ```text
//!   mkfs, fio, qemu-img ... -- MNT/disk -- kernel's FUSE -- threads (file.rs) -- SharedDisk -- BlkFrontend -- rings -- the back
//! ```
//! The disk does not end when its backend does: requests wait, and go on with the next. Generic
//! over the platform; a platform brings its attachment and its lock.

mod file;
mod fuse;
mod loopback;
mod mount;
mod program;
mod waiting;
mod xen;

use crate::choice::choice;
use crate::loopback_machine::{NO_DOMAIN, guest_domid};
use crate::screen;
use crate::stop::Stop;
use crate::usage::Given;
use clap::Args;
use mount::Mounted;
use pregrant::blk::device_number;
use pregrant::blk::features::{INDIRECT_SEGMENTS_MAX, MAX_RING_ORDER};
use pregrant::blk::front::FrontConfig;
use pregrant::platform::Platform;
use pregrant::wire::blkif::Abi;
use pregrant::xenstore::{Client, Transport};
use pregrant_host::drivers::{BlkFrontend, Mode, PollLoop};
use pregrant_host::wake::WakeOn;
use rustix::process::configure_io_flusher_behavior;
use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Arguments of `pregrant blkfront`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  pregrant blkfront --loopback /tmp/xen --domain 5 --mount /mnt/xvda
  pregrant blkfront --mount /mnt/xvda
  pregrant blkfront --mount /mnt/xvda --wait
  mkfs.ext4 /mnt/xvda/disk
  fio --name=t --filename=/mnt/xvda/disk --direct=1 --ioengine=io_uring --iodepth=32 --rw=randwrite --verify=crc32c

On Xen it serves a disk of the domain in which it runs, in place of the kernel's blkfront. It needs root, and /dev/fuse. The
file is as long as the disk and has no page cache: what a write was answered for is at the backend, what fsync was answered for is on
the disk. A disk that is not there in 15 s ends it with the reason (--wait: it waits). Once it is there the backend may end, be
killed and be started again: programs wait. One that is killed while it waits ends after a second or two; --timeout 60 has
programs get EIO after a minute. Ctrl-C unmounts, flushes and closes the disk,
as soon as no program has the file open; a second one ends it at once.")]
pub struct BlkFrontArgs {
    /// Be a guest of the loopback machine in this directory
    ///
    /// One that `pregrant-lab loopback serve` runs
    #[arg(long, value_name = "DIR", requires = "domain")]
    loopback: Option<PathBuf>,
    /// Which guest, on the loopback; on Xen it is the domain in which this runs
    #[arg(long, value_name = "DOMID", value_parser = guest_domid)]
    domain: Option<u16>,
    /// Which of its disks, by name (xvda) or number (51712)
    ///
    /// Without it the only one
    #[arg(long, value_name = "DISK", value_parser = device)]
    device: Option<u32>,
    /// The directory in which the disk is to be the file `disk`
    #[arg(long, value_name = "DIR")]
    mount: PathBuf,
    /// Number of queues, limited by the backend and by grantable memory
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    queues: u32,
    /// Pages of each ring
    ///
    /// 1, 2, 4, 8 or 16, or as many as the backend allows; a page has 32 requests
    #[arg(long, value_name = "N", default_value = "1", value_parser = ring_order)]
    ring_pages: u32,
    /// Pages that one request has at most, or as many as the backend allows
    ///
    /// More than 11 need indirect requests
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=INDIRECT_SEGMENTS_MAX as i64))]
    segments: u32,
    /// Grant pages for each request, and not once
    ///
    /// Otherwise the backend keeps them mapped
    #[arg(long)]
    no_persistent: bool,
    /// Seconds to wait for the disk before exiting with the reason
    ///
    /// Without a number, or with 0: no limit
    #[arg(long, value_name = "SECONDS", default_value_t = WAIT_USUAL, num_args = 0..=1, require_equals = true, default_missing_value = "0", hide_default_value = true)]
    wait: u64,
    /// Seconds until a program's I/O fails with EIO if no backend answers it
    ///
    /// A read, a write or an fsync, as with NFS' soft. Without it programs wait, and only those
    /// that are killed end
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86400))]
    timeout: Option<u64>,
    /// Format of the ring's requests (blkif protocol)
    ///
    /// Of a 64-bit or of a 32-bit guest
    #[arg(long, value_name = "ABI", default_value = "x86_64", value_parser = choice(LAYOUTS, layout_name))]
    layout: Abi,
    /// `--segments` was not given
    #[arg(skip)]
    default_segments: bool,
}

const LAYOUTS: &[(Abi, &str)] =
    &[(Abi::X86_64, "As 64-bit guests have them"), (Abi::X86_32, "As 32-bit guests of x86 have them")];

fn layout_name(abi: Abi) -> &'static str {
    match abi {
        Abi::X86_64 => "x86_64",
        Abi::X86_32 => "x86_32",
    }
}

fn device(text: &str) -> std::result::Result<u32, String> {
    device_number::parse(text).ok_or_else(|| "a disk such as xvda, xvdb1 or 51712".into())
}

/// Parses the number of a ring's pages, as the exponent of 2.
pub fn ring_order(text: &str) -> std::result::Result<u32, String> {
    let pages = (0..=MAX_RING_ORDER).find(|order| text == (1u32 << order).to_string());
    pages.ok_or_else(|| "a power of two from 1 to 16".into())
}

/// The time that a backend has to answer the remaining requests and to release the guest's memory.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);
/// The default number of seconds to wait for a disk. A back waits ten seconds for an image that is
/// in use, and then reports which process uses it.
const WAIT_USUAL: u64 = 15;
/// Interval at which a signal is checked for while no backend has been found.
const CHECK: Duration = Duration::from_millis(100);

pub fn run(mut args: BlkFrontArgs, given: &Given) -> Result<()> {
    args.default_segments = !given.has("segments");
    if args.loopback.is_none() {
        given.refuse("domain", NO_DOMAIN)?;
    }
    mount::check(&args.mount)?;
    flush_io();
    match &args.loopback {
        Some(dir) => loopback::run(dir, &args),
        None => xen::run(&args),
    }
}

/// Marks this process so that the kernel does not write to a disk to free memory for it: the disk
/// may be its own, for example as a loop device on the file, and then both would wait for each
/// other. Called before the first thread, since threads inherit it.
fn flush_io() {
    if let Err(e) = configure_io_flusher_behavior(true) {
        // LOG: once, at the start.
        log::info!(
            "cannot become an IO_FLUSHER ({e}): if a file system on this disk is written to by programs that share a memory limit \
             with this process, both may wait for each other; it takes CAP_SYS_RESOURCE and Linux 5.6"
        );
    }
}

impl BlkFrontArgs {
    fn config(&self) -> FrontConfig {
        FrontConfig {
            queues: self.queues,
            ring_order: self.ring_pages,
            abi: self.layout,
            persistent: !self.no_persistent,
            max_segments: self.segments,
            ..FrontConfig::default()
        }
    }

    /// Returns the number of the disk that the user asked for, or of the only disk of this domain.
    fn handle<T: Transport>(&self, xs: &mut Client<T>) -> Result<u32> {
        if let Some(handle) = self.device {
            return Ok(handle);
        }
        let names = match xs.directory("device/vbd") {
            Err(e) if e.is_not_found() => Vec::new(),
            names => names?,
        };
        let mut handles: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
        handles.sort_unstable();
        match handles[..] {
            [handle] => Ok(handle),
            [] => Err("this domain has no disk (device/vbd in xenstore is empty): attach one".into()),
            _ => {
                let names: Vec<_> = handles.into_iter().map(device_number::name).collect();
                Err(format!("this domain has the disks {}: say which with --device", names.join(", ")).into())
            }
        }
    }
}

/// Serves the disk, from the search for its backend to its orderly end.
fn serve<P: Platform, T: Transport>(
    mut front: BlkFrontend<P, T>,
    args: &BlkFrontArgs,
    stop: &Stop,
) -> Result<()>
where
    P::Events: WakeOn,
{
    let id = front.device().id();
    if args.default_segments {
        front.default_segments();
    }
    let name = device_number::name(id.handle);
    let most = Duration::from_secs(args.wait);
    let bound = if args.wait > 0 { format!(", {} s at most", args.wait) } else { String::new() };
    // LOG: of the process' own front.
    log::info!("{id}: waits for a backend{bound}");
    let began = Instant::now();
    while !front.connect(CHECK)? {
        if stop.asked() {
            return Ok(());
        }
        if args.wait > 0 && began.elapsed() >= most {
            let why = front.why_not();
            let _ = front.close(CLOSE_PATIENCE); // why it is not there is the error to tell
            return Err(format!(
                "{id} ({name}): no disk in {} s: {}. With --wait this waits until it is there",
                args.wait,
                why.trim_end_matches('.')
            )
            .into());
        }
    }
    let mut mounted = Mounted::new(front, &args.mount, args.timeout.map(Duration::from_secs), stop)?;
    let mib = mounted.front().disk().len() as f64 / f64::from(1 << 20);
    let file = args.mount.join(file::NAME);
    let _ = screen::print(format_args!("{}: {name}, {mib} MiB, is {}", id.front, file.display()));
    let ran = PollLoop::new(Mode::Adaptive).run(&mut mounted);
    let (mut front, ended) = mounted.end(ran.is_ok());
    if let Err(e) = ran.and(ended) {
        let _ = front.close(CLOSE_PATIENCE); // the first error is the one to tell
        return Err(e);
    }
    let flushed = front.finish(CLOSE_PATIENCE)?;
    if front.repeated() > 0 {
        // LOG: as above.
        log::info!("{id}: resubmitted {} request(s) to another backend", front.repeated());
    }
    if !front.close(CLOSE_PATIENCE)? {
        // LOG: as above.
        log::warn!("{id}: the backend has not unmapped our pages within {CLOSE_PATIENCE:?}");
    }
    if flushed {
        return Ok(());
    }
    Err(format!(
        "{id}: the last flush failed, or no backend answered it in {CLOSE_PATIENCE:?}: what was written since the last fsync may not be on the disk"
    )
    .into())
}
