//! `pregrant front`: a guest's vif as an interface of the guest's kernel (`--tap`); and what any
//! other front's process begins with, as `pregrant-lab front` does, which makes traffic itself.
//!
//! ```text
//!   run: options --> attach: on Xen (xen), or on a loopback machine (loopback) --> Joined --> VifUser
//!                                                                                         Tap: tap -- Frontend -- rings -- the backend
//! ```
//! The guest does not end when its backend does: it waits, and goes on with the next. Generic over
//! the platform; a platform brings its attachment and its lock.

mod buffer_count;
mod drops;
mod echo;
pub mod frame_hook;
mod hook;
mod loopback;
mod own_buffers;
pub mod packet_filter;
mod tap;
#[cfg(feature = "xen")]
mod xen;

use self::buffer_count::{BufferCount, buffer_count};
use self::frame_hook::{FrameHook, Matching};
use self::hook::{Action, Match};
use self::own_buffers::FRAME_PAGES;
pub use self::tap::Tap;
use crate::choice::choice;
use crate::daemon::MODES;
use crate::experiment::{ExperimentArgs, HEADING};
use crate::loopback_machine::{NO_DOMAIN, guest_domid};
use crate::path_choice::path_choice;
use crate::stop::Stop;
use crate::usage::{Given, Usage};
use clap::{Args, ValueEnum};
use pregrant::DomId;
use pregrant::net::features::MAX_RING_ORDER;
use pregrant::net::front::FrontConfig;
use pregrant::net::front::Granting;
use pregrant::net::front::lent::{RX_HEAD_BYTES, RX_HEAD_LEAST};
use pregrant::net::path::PathName;
use pregrant::net::path::staging::keys::ALL_DATA_LENS;
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::platform::Platform;
use pregrant::xenstore::Transport;
use pregrant_host::drivers::{Defaults, Frontend, Mode, RxCoalescing};
use pregrant_host::wake::WakeOn;
use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Arguments of `pregrant front`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  pregrant front --tap eth0
  pregrant front --tap eth0 --path persistent
  pregrant front --tap eth0 --loopback /tmp/xen --domain 5

On Xen it serves a vif of the domain in which it runs, in place of the kernel's netfront. The guest's kernel gets an
interface, with the vif's address and MTU; give it IP addresses as any other (ip addr, ip link set up). It goes with this
process. Ctrl-C closes the vif and ends the guest. The backend may end, be killed and be started again meanwhile: the
guest waits for the next one. `pregrant-lab front` is a guest that pings and transfers by itself.")]
pub struct FrontArgs {
    /// Give the guest's kernel a network interface of this name
    #[arg(long, value_name = "NAME")]
    tap: String,
    #[command(flatten)]
    vif: VifArgs,
}

/// Which vif a front serves, and how its frames travel.
#[derive(Args, Debug)]
pub struct VifArgs {
    /// Be a guest of the loopback machine in this directory
    ///
    /// One that `pregrant-lab loopback serve` runs
    #[arg(long, value_name = "DIR", requires = "domain")]
    loopback: Option<PathBuf>,
    /// Which guest, on the loopback; on Xen it is the domain in which this runs
    #[arg(long, value_name = "DOMID", value_parser = guest_domid)]
    domain: Option<u16>,
    /// Which of its vifs
    #[arg(long, value_name = "HANDLE", default_value_t = 0)]
    vif: u32,
    /// How frames are moved
    #[arg(long, value_name = "PATH", default_value = "staging", value_parser = path_choice(PATHS, PathName::name, |_| false))]
    path: PathName,
    /// With --path staging: bytes of a frame that fit a buffer
    ///
    /// 64, 128, 256, 2048, 4096, or 65535 for frames of any length; without it 2048 on the
    /// loopback, and 65535 on Xen, where that takes the least memory
    #[arg(long, value_name = "N", value_parser = data_len)]
    data_len: Option<DataLen>,
    /// With --path staging: bytes of a buffer for frames from the guest alone
    #[arg(long, help_heading = HEADING, hide = true, value_name = "N", value_parser = data_len, conflicts_with = "rx_only")]
    tx_data_len: Option<DataLen>,
    /// With --path staging: bytes of a buffer for frames to the guest alone
    #[arg(long, value_name = "N", value_parser = data_len)]
    rx_data_len: Option<DataLen>,
    /// With --path staging: buffers for frames to the guest alone; a frame from it takes a grant
    /// for each of its pages
    #[arg(long, help_heading = HEADING, hide = true)]
    rx_only: bool,
    /// Receive no frames over several slots
    ///
    /// The backend drops those that are longer than an MTU of 1500 allows, or than the staging
    /// buffers, a page at most. With --data-len 4096 no frame to the guest needs another page than
    /// its buffer
    #[arg(long)]
    no_sg: bool,
    /// Buffers (or pages) for each direction and queue
    ///
    /// At least the ring's slots, at most the backend's limit. auto: twice a processor's private
    /// cache. For --path staging, persistent and gref-mapping, and for foreign, which pregrant-lab
    /// has
    #[arg(long, value_name = "N", default_value = "auto", value_parser = buffer_count)]
    buffers: BufferCount,
    /// Bytes of an IP packet
    ///
    /// Without it 1500, and with --tap what the toolstack says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(576..=65521))]
    pub mtu: Option<u32>,
    /// Number of queues, limited by the backend and by grantable memory
    ///
    /// Without it one for each processor
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64), requires = "tap")]
    queues: Option<u32>,
    /// Pages of each ring
    ///
    /// 1, 2, 4, 8 or 16, or as many as the backend and the memory that can be granted allow; a page
    /// has 256 slots
    #[arg(long, value_name = "N", default_value = "1", value_parser = ring_order)]
    ring_pages: u32,
    /// How to wait for work
    #[arg(long, value_name = "MODE", default_value = "adaptive", value_parser = choice(MODES, Mode::name))]
    pub mode: Mode,
    /// Handle matching received frames before the stack or the kernel gets them, as an XDP program
    /// does. pass: hand them on; drop; tx: return them to their sender (an echo request becomes its
    /// reply); redirect=DOMID.HANDLE: send them by another vif of this guest, which this process
    /// then owns
    #[arg(long, help_heading = HEADING, hide = true, value_name = "ACTION", value_parser = hook::action)]
    hook: Option<Action>,
    /// Frames that the hook matches: all, icmp-echo (echo requests to this vif), or a file with a
    /// classic BPF program, as `tcpdump -y EN10MB -ddd` prints it
    #[arg(long = "match", help_heading = HEADING, hide = true, value_name = "FRAMES", default_value = "icmp-echo", value_parser = hook::matching, requires = "hook")]
    matching: Match,
    /// With --tap: how received frames reach the guest's kernel
    ///
    /// They are copied first, or it reads all but their heads in the pages that the backend wrote
    /// to
    #[arg(long, value_name = "WAY", default_value = "copy", requires = "tap", conflicts_with = "hook")]
    rx: RxWay,
    /// With --rx reference: bytes of a longer frame that are copied; all headers of one with a
    /// blank checksum, or of a large segment
    #[arg(long, help_heading = HEADING, hide = true, value_name = "N", default_value_t = RX_HEAD_BYTES as u32, value_parser = clap::value_parser!(u32).range(RX_HEAD_LEAST as i64..=RX_HEAD_BYTES as i64))]
    rx_head: u32,
    /// Pages for each queue that frames of the guest's kernel are read into and sent from without a
    /// copy, where the backend has mapped them (at most 256). With --path gref-mapping, --tap and
    /// --loopback
    #[arg(long, help_heading = HEADING, hide = true, value_name = "PAGES", requires = "tap", value_parser = clap::value_parser!(u32).range(2 * FRAME_PAGES as i64..=4096))]
    own_buffers: Option<u32>,
    /// How many frames to wait for before waking, 100 us at most: off, a number, or load: as many
    /// as the last wake-up brought
    #[arg(long, help_heading = HEADING, hide = true, value_name = "N", default_value_t = RxCoalescing::Off)]
    rx_coalesce: RxCoalescing,
    #[command(flatten)]
    pub experiment: ExperimentArgs,
}

const PATHS: &[(PathName, &str)] = &[
    (PathName::Staging, "Staging buffers, where the backend has them too"),
    (PathName::Persistent, "Pages granted once, which the backend keeps mapped if it can"),
    (
        PathName::GrefMapping,
        "Pages granted once, which the backend is asked to keep mapped (netif.h's control messages)",
    ),
    (
        PathName::DataRing,
        "A circular area granted at connect, if the backend takes one; frames that find it full go by grants",
    ),
    (PathName::Foreign, "Any page of this domain: the backend maps all of its memory (loopback only)"),
    (PathName::GuestCopy, "This end copies received frames out of the backend's pages (loopback only)"),
    (PathName::Copy, "A grant for each frame, as a guest without Pregrant"),
];
const _: () = assert!(PATHS.len() == PathName::COUNT - 1, "all but `map`, which is the back's to choose");

/// How frames reach the guest's kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum RxWay {
    /// Copied, then written
    Copy,
    /// Written from the pages, by writev or io_uring; with vhost-net copied
    Reference,
}

/// Options about staging buffers.
const STAGING_OPTIONS: &[&str] = &["data-len", "tx-data-len", "rx-data-len", "rx-only"];

/// Paths whose memory may have more buffers than a ring has slots.
const WITH_BUFFERS: &[PathName] =
    &[PathName::Staging, PathName::Persistent, PathName::GrefMapping, PathName::Foreign];

/// The time that the backend may need to unmap the guest's memory.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

/// Runs `pregrant front`.
pub fn run(args: &FrontArgs, given: &Given) -> Result<()> {
    serve_vif(&args.vif, given, &Tap { name: &args.tap, args: &args.vif })
}

/// Connects as the front of the guest's vif, and lets `user` use it until its end.
pub fn serve_vif(args: &VifArgs, given: &Given, user: &impl VifUser) -> Result<()> {
    args.check(given)?;
    let exit = match args.hook {
        Some(action) => action.exit(args.domain.map(DomId), args.vif)?,
        None => None,
    };
    let matching = args.matching.read()?;
    let chosen = ["path"].iter().chain(STAGING_OPTIONS).any(|option| given.has(option));
    let defaults = Defaults { staging: !chosen, queues: !given.has("queues") };
    match &args.loopback {
        Some(dir) => loopback::run(dir, args, (exit, matching), defaults, user),
        None if args.path == PathName::Foreign => Err(NO_FOREIGN.into()),
        None if args.path == PathName::GuestCopy => Err(NO_GUEST_COPY.into()),
        #[cfg(feature = "xen")]
        None => xen::run(args, (exit, matching), defaults, user),
        #[cfg(not(feature = "xen"))]
        None => Err(no_xen().into()),
    }
}

/// The work that a front's process does with its vif. It is generic, since the platform is known
/// only at run time.
pub trait VifUser {
    /// Number of queues to ask for.
    fn queues(&self) -> u32;

    /// Uses the vif until its own end or a signal, and closes it.
    ///
    /// # Errors
    /// The vif failed, or its user did.
    fn run<P: Platform, T: Transport>(&self, joined: Joined<P, T>, stop: &Stop) -> Result<()>
    where
        P::Events: WakeOn;
}

/// A vif of which this process is the front. The vif may still wait for its backend.
pub struct Joined<P: Platform, T: Transport> {
    pub guest: Frontend<P, T>,
    /// The front's hook, with the other vif that the hook may need.
    pub hook: Option<FrameHook<P, T>>,
    pub mac: [u8; 6],
}

/// The error for `guest-copy` on Xen, where neither end can grant pages to the other as that path
/// needs.
pub const NO_GUEST_COPY: &str = "--path guest-copy is for the loopback alone (--loopback DIR): on Xen gntalloc takes pages back that a guest still \
    has mapped, so that one that keeps what it is lent would cost its backend new pages without bound; use staging or data-ring";

/// The error for `foreign` on Xen, where neither end can provide that path.
pub const NO_FOREIGN: &str = "--path foreign is for the loopback alone (--loopback DIR): on Xen the backend would map the whole memory of the \
    guest, which takes a privileged domain and leaves no isolation between the two; use staging or data-ring";

/// Returns the error of a command on Xen, in a program that is built without the feature `xen`.
#[cfg(not(feature = "xen"))]
pub fn no_xen() -> String {
    "this pregrant-lab was built for the loopback alone, as `cargo demo` builds it; name a loopback machine \
     (--loopback DIR), or for Xen build it by `cargo build --release -p pregrant-lab`"
        .into()
}

/// Default length of an IP packet in bytes.
pub const MTU: u32 = 1500;
/// Largest default number of queues.
const QUEUES_MAX: usize = 8;

/// Parses the number of a ring's pages, as the exponent of 2.
fn ring_order(text: &str) -> std::result::Result<u32, String> {
    let pages = (0..=MAX_RING_ORDER).find(|order| text == (1u32 << order).to_string());
    pages.ok_or_else(|| "a power of two from 1 to 16".into())
}

/// Parses a length of staging buffers that backs offer.
fn data_len(text: &str) -> std::result::Result<DataLen, String> {
    let offered = text.parse().ok().filter(|len| ALL_DATA_LENS.contains(len));
    offered.and_then(DataLen::new).ok_or_else(|| {
        let all: Vec<_> = ALL_DATA_LENS.iter().map(u32::to_string).collect();
        format!("one of the lengths that backs offer, as {}", all.join(" or "))
    })
}

impl VifArgs {
    /// Refuses options that would have no effect.
    fn check(&self, given: &Given) -> std::result::Result<(), Usage> {
        if self.loopback.is_none() {
            given.refuse("domain", NO_DOMAIN)?;
            let why = "on Xen gntalloc grants no memory that a process has (it is for --loopback)";
            given.refuse("own-buffers", why)?;
        }
        if self.path != PathName::GrefMapping {
            let why = format_args!("by --path {} no page of the guest's own goes by reference", self.path);
            given.refuse("own-buffers", why)?;
        }
        // A buffer is its slot's for good.
        if [PathName::Staging, PathName::DataRing, PathName::GuestCopy].contains(&self.path) {
            let why = format_args!("frames by --path {} come in no pages, so that all are copied", self.path);
            given.refuse("rx", why)?;
        }
        if self.rx != RxWay::Reference {
            given.refuse("rx-head", "it is for --rx reference")?;
        }
        if self.mode == Mode::Poll {
            given.refuse("rx-coalesce", "--mode poll asks for no events")?;
        }
        if self.path != PathName::Staging {
            for option in STAGING_OPTIONS {
                given.refuse(option, format_args!("--path {} has no staging buffers", self.path))?;
            }
        }
        if !WITH_BUFFERS.contains(&self.path) {
            given.refuse("buffers", format_args!("--path {} has a page for each slot", self.path))?;
        }
        if self.rx_data_len.is_some() && (self.rx_only || self.tx_data_len.is_some()) {
            given.refuse("data-len", "both directions have lengths of their own")?;
        }
        Ok(())
    }

    /// Creates the front's configuration with `queues` queues. `data_len` is used if the user gave
    /// none. `grantable` is the number of pages that the domain may grant; None: unknown.
    fn config(&self, queues: u32, data_len: u32, grantable: Option<u64>) -> FrontConfig {
        let len = self.data_len.or_else(|| DataLen::new(data_len));
        let of = |own: Option<DataLen>| own.or(len).filter(|_| self.path == PathName::Staging);
        let (tx, rx) = (of(self.tx_data_len).filter(|_| !self.rx_only), of(self.rx_data_len));
        let lists = queues * [tx, rx].iter().flatten().count() as u32;
        FrontConfig {
            queues,
            staging: Buffers {
                sent_on: self.hook == Some(Action::Tx),
                buffers: tx.max(rx).map_or(0, |len| self.buffers.of(len, self.ring_pages, lists, grantable)),
                ..Buffers::of(tx, rx)
            },
            pages: self.buffers.pages(self.ring_pages, 2 * queues, grantable),
            ring_order: self.ring_pages,
            granting: Granting::PerFrame,
            sg: !self.no_sg,
            ..FrontConfig::default()
        }
        .asking_for(self.path)
    }

    /// Returns the number of queues of an interface: the number that the user asked for, or one for
    /// each processor.
    fn nr_queues(&self) -> u32 {
        self.queues.unwrap_or_else(|| {
            std::thread::available_parallelism().map_or(1, |n| n.get().min(QUEUES_MAX) as u32)
        })
    }
}

/// Combines a front's vif with its hook, if it has one. The hook gets the vif by which its frames
/// leave.
fn joined<P: Platform, T: Transport>(
    (mut guest, exit): (Frontend<P, T>, Option<Frontend<P, T>>),
    args: &VifArgs,
    matching: Matching,
) -> Result<Joined<P, T>>
where
    P::Events: WakeOn,
{
    guest.set_rx_coalescing(args.rx_coalesce);
    let mac = hook::mac_of(&guest)?;
    let hook = match args.hook {
        Some(action) => Some(hook::hook(action, matching, mac, exit)?),
        None => None,
    };
    Ok(Joined { guest, hook, mac })
}

/// Closes a vif that is connected.
///
/// # Errors
/// The vif cannot be closed.
pub fn close<P: Platform, T: Transport>(guest: &mut Frontend<P, T>) -> Result<()> {
    if guest.vif().is_live() && !guest.close(CLOSE_PATIENCE)? {
        log::warn!(
            "{id}: the backend has not unmapped our pages within {CLOSE_PATIENCE:?}",
            id = guest.device().id()
        );
    }
    Ok(())
}

/// Derives the configuration of the vif by which a hook's frames leave. It has one queue, since it
/// only sends what the hook redirects.
fn exit_config(config: FrontConfig) -> FrontConfig {
    FrontConfig { queues: 1, ..config }
}
