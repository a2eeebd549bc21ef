//! `pregrant front`: a guest's frontend, for the guest's kernel (`--tap`) or with a small tool to
//! make traffic with.
//!
//! ```text
//!   station (TCP/IP stack) -- Frontend -- rings -- the backend        or        tap -- Frontend -- rings -- the backend
//!      |-- answers pings, always                                           the guest's kernel
//!      '-- --ping, --serve, --send
//! ```
//! The guest does not end when its backend does: it waits, and goes on with the next. Generic over
//! the platform; a platform brings its attachment and its lock.

mod buffer_count;
mod drops;
mod hook;
mod loopback;
mod own_buffers;
mod tap;
mod xen;

use self::buffer_count::{BufferCount, buffer_count};
use self::hook::{Action, Match};
use self::own_buffers::FRAME_PAGES;
use crate::daemon::MODES;
use crate::loopback::{NO_DOMAIN, guest_domid};
use crate::stop::Stop;
use clap::{Args, ValueEnum};
use pregrant::DomId;
use pregrant::net::features::MAX_RING_ORDER;
use pregrant::net::front::FrontConfig;
use pregrant::net::front::Granting;
use pregrant::net::front::lent::{RX_HEAD_BYTES, RX_HEAD_LEAST};
use pregrant::net::headers::MacAddr;
use pregrant::net::path::staging::keys::ALL_DATA_LENS;
use pregrant::net::path::staging::list::DataLen;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::net::path::{PathName, data_ring};
use pregrant::platform::{Clock, Platform};
use pregrant::xenstore::Transport;
use pregrant_host::drivers::{Defaults, Frontend, Mode, RxCoalescing};
use pregrant_host::wake::WakeOn;
use pregrant_lab::choice::choice;
use pregrant_lab::screen;
use pregrant_lab::station::Station;
use pregrant_lab::station::frame_hook::{FrameHook, Matching};
use pregrant_lab::station::guest_stack::{GuestStack, StackConfig};
use pregrant_lab::station::ping::Pinger;
use pregrant_lab::station::transfer::{Progress, TransferClient, TransferError, TransferServer};
use pregrant_lab::usage::{Given, Usage};
use std::error::Error;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Arguments of `pregrant front`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  pregrant front --tap eth0
  pregrant front --ping 10.9.0.1 --address 10.9.0.2
  pregrant front --loopback /tmp/xen --domain 6 --serve
  pregrant front --loopback /tmp/xen --domain 5 --ping 10.0.0.6
  pregrant front --loopback /tmp/xen --domain 5 --send 10.0.0.6 --bytes 2G

On Xen it serves a vif of the domain in which it runs, in place of the kernel's netfront. With --tap the guest's kernel
gets an interface, with the vif's address and MTU; give it IP addresses as any other (ip addr, ip link set up). It goes
with this process. Without --tap, --ping, --serve and --send it is a station that answers pings. Ctrl-C closes the vif and ends the guest. The
backend may end, be killed and be started again meanwhile: the guest waits for the next one.")]
pub struct FrontArgs {
    /// Be a guest of the loopback machine in this directory (pregrant loopback serve)
    #[arg(long, value_name = "DIR", requires = "domain")]
    loopback: Option<PathBuf>,
    /// Which guest, on the loopback; on Xen it is the domain in which this runs
    #[arg(long, value_name = "DOMID", value_parser = guest_domid)]
    domain: Option<u16>,
    /// Which of its vifs
    #[arg(long, value_name = "HANDLE", default_value_t = 0)]
    vif: u32,
    /// The station's address; without it 10.0.x.y, where x and y are the domain's number in bytes
    #[arg(long, value_name = "IP", conflicts_with = "tap")]
    address: Option<Ipv4Addr>,
    /// How frames are moved
    #[arg(long, value_name = "PATH", default_value = "staging", value_parser = choice(PATHS, PathName::name))]
    path: PathName,
    /// With --path staging: bytes of a frame that fit a buffer: 64, 128, 256, 2048, 4096, or 65535
    /// for frames of any length; without it 2048 on the loopback, and 65535 on Xen, where that
    /// takes the least memory
    #[arg(long, value_name = "N", value_parser = data_len)]
    data_len: Option<DataLen>,
    /// The same for frames from the guest alone
    #[arg(long, value_name = "N", value_parser = data_len, conflicts_with = "rx_only")]
    tx_data_len: Option<DataLen>,
    /// The same for frames to the guest alone
    #[arg(long, value_name = "N", value_parser = data_len)]
    rx_data_len: Option<DataLen>,
    /// With --path staging: buffers for frames to the guest alone; a frame from it takes a grant
    /// for each of its pages
    #[arg(long)]
    rx_only: bool,
    /// Receive no frames over several slots: the backend drops those that are longer than an MTU of
    /// 1500 allows, or than the staging buffers, a page at most. With --data-len 4096 no frame to
    /// the guest needs another page than its buffer
    #[arg(long)]
    no_sg: bool,
    /// Buffers (or pages) for each direction and queue: at least the ring's slots, at most the
    /// backend's limit. auto: twice a processor's private cache. For --path staging, persistent,
    /// gref-mapping and foreign
    #[arg(long, value_name = "N", default_value = "auto", value_parser = buffer_count)]
    buffers: BufferCount,
    /// Bytes of an IP packet; without it 1500, and with --tap what the toolstack says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(576..=65521))]
    mtu: Option<u32>,
    /// Number of queues, limited by the backend and by grantable memory; without it one for each
    /// processor
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64), requires = "tap", conflicts_with_all = ["ping", "serve", "send"])]
    queues: Option<u32>,
    /// Pages of each ring: 1, 2, 4, 8 or 16, or as many as the backend and the memory that can be
    /// granted allow; a page has 256 slots
    #[arg(long, value_name = "N", default_value = "1", value_parser = ring_order)]
    ring_pages: u32,
    /// How to wait for work
    #[arg(long, value_name = "MODE", default_value = "adaptive", value_parser = choice(MODES, Mode::name))]
    mode: Mode,
    /// Handle matching received frames before the stack or the kernel gets them, as an XDP program
    /// does. pass: hand them on; drop; tx: return them to their sender (an echo request becomes its
    /// reply); redirect=DOMID.HANDLE: send them by another vif of this guest, which this process
    /// then owns
    #[arg(long, value_name = "ACTION", value_parser = hook::action)]
    hook: Option<Action>,
    /// Frames that --hook matches: all, icmp-echo (echo requests to this vif), or a file with a
    /// classic BPF program, as `tcpdump -y EN10MB -ddd` prints it
    #[arg(long = "match", value_name = "FRAMES", default_value = "icmp-echo", value_parser = hook::matching, requires = "hook")]
    matching: Match,
    /// With --tap: copy frames to the guest's kernel first, or let it read all but their heads in
    /// the pages that the backend wrote to
    #[arg(long, value_name = "WAY", default_value = "copy", requires = "tap", conflicts_with_all = ["ping", "serve", "send", "hook"])]
    rx: RxWay,
    /// With --rx reference: bytes of a longer frame that are copied; all headers of one with a
    /// blank checksum, or of a large segment
    #[arg(long, value_name = "N", default_value_t = RX_HEAD_BYTES as u32, value_parser = clap::value_parser!(u32).range(RX_HEAD_LEAST as i64..=RX_HEAD_BYTES as i64))]
    rx_head: u32,
    /// Pages for each queue that frames of the guest's kernel are read into and sent from without a
    /// copy, where the backend has mapped them (at most 256). With --path gref-mapping, --tap and
    /// --loopback
    #[arg(long, value_name = "PAGES", requires = "tap", conflicts_with_all = ["ping", "serve", "send"], value_parser = clap::value_parser!(u32).range(2 * FRAME_PAGES as i64..=4096))]
    own_buffers: Option<u32>,
    /// How many frames to wait for before waking, 100 us at most: off, a number, or load: as many
    /// as the last wake-up brought
    #[arg(long, value_name = "N", default_value_t = RxCoalescing::Off)]
    rx_coalesce: RxCoalescing,
    #[command(flatten)]
    task: Task,
    /// With --ping: end after so many requests
    #[arg(long, value_name = "N", requires = "ping", conflicts_with_all = ["tap", "serve", "send"])]
    count: Option<u64>,
    /// With --ping: seconds between two requests
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval, requires = "ping", conflicts_with_all = ["tap", "serve", "send"])]
    interval: f64,
    /// With --send: how many bytes; K, M and G are powers of 1024
    #[arg(long, value_name = "N", default_value = "256M", value_parser = amount, requires = "send", conflicts_with_all = ["tap", "serve", "ping"])]
    bytes: u64,
}

#[derive(Args, Debug)]
#[group(multiple = false)]
struct Task {
    /// Give the guest's kernel a network interface of this name
    #[arg(long, value_name = "NAME")]
    tap: Option<String>,
    /// Send echo requests
    #[arg(long, value_name = "IP")]
    ping: Option<Ipv4Addr>,
    /// Receive transfers, until a signal
    #[arg(long)]
    serve: bool,
    /// Transfer bytes to a guest that serves
    #[arg(long, value_name = "IP")]
    send: Option<Ipv4Addr>,
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

/// Paths whose memory may be more than rings have slots.
const WITH_BUFFERS: &[PathName] =
    &[PathName::Staging, PathName::Persistent, PathName::GrefMapping, PathName::Foreign];

/// A number with a unit: `64K`, `2G`.
pub fn amount(text: &str) -> std::result::Result<u64, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    let number = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    number.ok_or_else(|| "a number of bytes, such as 1500, 64K or 2G".into())
}

fn interval(text: &str) -> std::result::Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.001..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("seconds, 0.001 to 3600".into()),
    }
}

const PORT: u16 = 5001;
/// The seed of their bytes.
const SEED: u64 = 0x5eed;
/// Transfers that are served at a time.
const TRANSFERS_MAX: usize = 8;
/// How long the other end may take to answer at all.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);
/// How long nothing may move in a transfer while there is a backend.
const MOVE_PATIENCE: Duration = Duration::from_secs(30);
/// How long one that has a place may be silent, while there is a backend.
const SILENCE_MOST: Duration = Duration::from_secs(40);
/// Interval of these three checks.
const PATIENCE_CHECK: Duration = Duration::from_secs(1);
/// How long the backend may take to release the guest's memory.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);
/// How long an end stays after its connection is over: late acknowledgements still go out.
const LINGER: Duration = Duration::from_millis(50);

pub fn run(args: FrontArgs, given: &Given) -> Result<()> {
    args.check(given)?;
    let exit = match args.hook {
        Some(action) => action.exit(args.domain.map(DomId), args.vif)?,
        None => None,
    };
    let matching = args.matching.read()?;
    let chosen = ["path"].iter().chain(STAGING_OPTIONS).any(|option| given.has(option));
    let defaults = Defaults { staging: !chosen, queues: !given.has("queues") };
    match &args.loopback {
        Some(dir) => loopback::run(dir, &args, (exit, matching), defaults),
        None if args.path == PathName::Foreign => Err(NO_FOREIGN.into()),
        None if args.path == PathName::GuestCopy => Err(NO_GUEST_COPY.into()),
        None => xen::run(&args, (exit, matching), defaults),
    }
}

/// Why neither end lends or borrows on Xen.
pub const NO_GUEST_COPY: &str = "--path guest-copy is for the loopback alone (--loopback DIR): on Xen gntalloc takes pages back that a guest still \
    has mapped, so that one that keeps what it is lent would cost its backend new pages without bound; use staging or data-ring";

/// Why neither end does it on Xen.
pub const NO_FOREIGN: &str = "--path foreign is for the loopback alone (--loopback DIR): on Xen the backend would map the whole memory of the \
    guest, which takes a privileged domain and leaves no isolation between the two; use staging or data-ring";

/// The default number of bytes of an IP packet.
const MTU: u32 = 1500;
/// Queues that are not asked for by number.
const QUEUES_MAX: usize = 8;

/// Pages of a ring, as the exponent of 2.
fn ring_order(text: &str) -> std::result::Result<u32, String> {
    let pages = (0..=MAX_RING_ORDER).find(|order| text == (1u32 << order).to_string());
    pages.ok_or_else(|| "a power of two from 1 to 16".into())
}

/// A length of staging buffers that backs offer.
fn data_len(text: &str) -> std::result::Result<DataLen, String> {
    let offered = text.parse().ok().filter(|len| ALL_DATA_LENS.contains(len));
    offered.and_then(DataLen::new).ok_or_else(|| {
        let all: Vec<_> = ALL_DATA_LENS.iter().map(u32::to_string).collect();
        format!("one of the lengths that backs offer, as {}", all.join(" or "))
    })
}

impl FrontArgs {
    /// Refuses what would have no effect.
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

    /// The request to the back, with `data_len` as the default. `grantable` is the number of pages
    /// that the domain may grant; None: unknown.
    fn config(&self, data_len: u32, grantable: Option<u64>) -> FrontConfig {
        let len = self.data_len.or_else(|| DataLen::new(data_len));
        let of = |own: Option<DataLen>| own.or(len).filter(|_| self.path == PathName::Staging);
        let (tx, rx) = (of(self.tx_data_len).filter(|_| !self.rx_only), of(self.rx_data_len));
        let queues = self.nr_queues();
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
            persistent: self.path == PathName::Persistent,
            gref_mapping: self.path == PathName::GrefMapping,
            foreign: self.path == PathName::Foreign,
            guest_copy: self.path == PathName::GuestCopy,
            data_ring: (self.path == PathName::DataRing).then_some(data_ring::DEFAULT_ORDER),
            granting: Granting::PerFrame,
            sg: !self.no_sg,
            ..FrontConfig::default()
        }
    }

    /// Number of queues to ask for. The station uses only one.
    fn nr_queues(&self) -> u32 {
        match (&self.task.tap, self.queues) {
            (None, _) => 1,
            (_, Some(queues)) => queues,
            _ => std::thread::available_parallelism().map_or(1, |n| n.get().min(QUEUES_MAX) as u32),
        }
    }

    fn address(&self, domid: DomId) -> Ipv4Addr {
        let [hi, lo] = domid.0.to_be_bytes();
        self.address.unwrap_or(Ipv4Addr::new(10, 0, hi, lo))
    }
}

/// The guest's life, from its first search for a backend to its orderly end.
fn run_guest<P: Platform, T: Transport>(
    (mut guest, exit): (Frontend<P, T>, Option<Frontend<P, T>>),
    args: &FrontArgs,
    matching: Matching,
    stop: &Stop,
) -> Result<()>
where
    P::Events: WakeOn,
{
    guest.set_rx_coalescing(args.rx_coalesce);
    let mac = hook::mac_of(&guest)?;
    let hook = match args.hook {
        Some(action) => Some(hook::hook(action, matching, mac, exit)?),
        None => None,
    };
    if let Some(name) = &args.task.tap {
        return tap::run((guest, hook), name, (mac, args.mtu), args, stop);
    }
    let domid = guest.platform().domid();
    let address = args.address(domid);
    let now_ns = guest.platform().clock().now_ns();
    let mut config = StackConfig::new(MacAddr(mac), address);
    (config.prefix_len, config.mtu, config.seed) = (16, args.mtu.unwrap_or(MTU) as usize, now_ns);
    let mut station = Station::hooked(guest, GuestStack::new(&config, now_ns), hook);
    station.set_mode(args.mode);
    let _ = screen::print(format_args!("{domid}: address {address}"));
    let done = match (args.task.ping, args.task.send) {
        (Some(to), _) => ping(&mut station, to, args, stop),
        (_, Some(to)) => send(&mut station, to, args.bytes, stop),
        _ => serve(&mut station, args.task.serve, stop),
    };
    if let Some(line) = station.hook_line() {
        screen::print(line)?;
    }
    if let Some(exit) = station.hook().and_then(FrameHook::exit) {
        close(exit.guest())?;
    }
    close(station.guest())?;
    done
}

/// Closes a vif that is connected.
fn close<P: Platform, T: Transport>(guest: &mut Frontend<P, T>) -> Result<()> {
    if guest.vif().is_live() && !guest.close(CLOSE_PATIENCE)? {
        log::warn!(
            "{id}: the backend has not unmapped our pages within {CLOSE_PATIENCE:?}",
            id = guest.device().id()
        );
    }
    Ok(())
}

/// The other vif's request to the back: it sends what the hook gives it.
fn exit_config(config: FrontConfig) -> FrontConfig {
    FrontConfig { queues: 1, ..config }
}

/// An answer that is not here after this long counts as lost.
const LAST_CHANCE: Duration = Duration::from_secs(1);

/// Echo requests until a signal, or as many as were asked for.
fn ping<P: Platform, T: Transport>(
    station: &mut Station<P, T>,
    to: Ipv4Addr,
    args: &FrontArgs,
    stop: &Stop,
) -> Result<()>
where
    P::Events: WakeOn,
{
    let interval_ns = (args.interval * 1e9) as u64;
    let domid = station.guest().platform().domid();
    let mut pinger = Pinger::new(station.stack(), to, domid.0);
    let mut next_ns = station.now_ns();
    let mut asked_ns = next_ns;
    let (mut least, mut most, mut sum) = (u64::MAX, 0, 0);
    let last_chance = LAST_CHANCE.as_nanos() as u64;
    let all_asked = |pinger: &Pinger| args.count.is_some_and(|n| pinger.sent >= n);
    while !stop.asked() {
        let now = station.now_ns();
        if all_asked(&pinger) && (!pinger.is_waiting() || now >= asked_ns + last_chance) {
            break;
        }
        let due = if all_asked(&pinger) { last_chance } else { next_ns.saturating_sub(now) };
        let mut answers = Vec::new();
        let live = station.is_live();
        station.turn::<Box<dyn Error>>(Duration::from_nanos(due), |stack, now| {
            // Without a backend nothing is asked: what waited would all come at once.
            if live && now >= next_ns && !all_asked(&pinger) && pinger.ask(stack, now) {
                next_ns = next_ns.max(now.saturating_sub(interval_ns)) + interval_ns;
                asked_ns = now;
            }
            while let Some(answer) = pinger.answer(stack, now) {
                answers.push(answer);
            }
            Ok(())
        })?;
        for answer in answers {
            (least, most, sum) = (least.min(answer.took_ns), most.max(answer.took_ns), sum + answer.took_ns);
            let ms = answer.took_ns as f64 / 1e6;
            screen::print(format_args!("answer from {to}: number {}, {ms:.3} ms", answer.seq))?;
        }
    }
    let under_way = pinger.under_way(station.now_ns(), last_chance);
    let lost = pinger.sent - pinger.answered - under_way;
    let mut text = format!("{} request(s), {} answer(s), {lost} lost", pinger.sent, pinger.answered);
    if under_way > 0 {
        text += &format!(", {under_way} under way");
    }
    if pinger.answered > 0 {
        let ms = |ns: u64| ns as f64 / 1e6;
        let mean = ms(sum) / pinger.answered as f64;
        text += &format!("; least {:.3}, mean {mean:.3}, most {:.3} ms", ms(least), ms(most));
    }
    screen::print(text)?;
    if pinger.answered == 0 && !stop.asked() {
        return Err(
            format!("{to} does not answer: is a guest with this address running, and a backend?").into()
        );
    }
    Ok(())
}

fn send<P: Platform, T: Transport>(
    station: &mut Station<P, T>,
    to: Ipv4Addr,
    bytes: u64,
    stop: &Stop,
) -> Result<()>
where
    P::Events: WakeOn,
{
    let now = station.now_ns();
    let mut client = TransferClient::new(station.stack(), (to, PORT), bytes, SEED, now)?;
    let mut watch = Watch::new(now);
    let answered_by = Instant::now() + ANSWER_PATIENCE;
    let mut quiet_since: Option<Instant> = None;
    let mut standstill = Standstill { bytes: 0, since_ns: now };
    let mut progress = Progress::Waiting;
    let report = loop {
        // Once it is done, no one may come any more: whether all is quiet is checked without
        // being woken.
        let due = if matches!(progress, Progress::Done(_)) { LINGER } else { PATIENCE_CHECK };
        let came = station.turn::<Box<dyn Error>>(due, |stack, now| {
            progress = client.pump(stack, now).map_err(|e| no_server(e, to))?;
            Ok(())
        })?;
        watch.check(station.now_ns(), came, progress, bytes);
        if stop.asked() {
            watch.clear();
            return Err(format!(
                "interrupted by a signal before all {bytes} bytes were received; start the transfer again"
            )
            .into());
        }
        let (now, started) = (station.now_ns(), progress != Progress::Waiting);
        let through = client.acknowledged(station.stack());
        let stands = standstill.check(through, started && station.is_live(), now) > MOVE_PATIENCE;
        match progress {
            Progress::Moving(_) if stands => {
                watch.clear();
                return Err(format!(
                    "{to} is gone: nothing has moved for {} s, after {} bytes; is that guest still running? If so, start \
                     the transfer again",
                    MOVE_PATIENCE.as_secs(),
                    standstill.bytes
                )
                .into());
            }
            Progress::Waiting if Instant::now() > answered_by => {
                watch.clear();
                return Err(format!(
                    "{to} does not answer: is a guest with this address running, with --serve, and a backend?"
                )
                .into());
            }
            // It has confirmed all, and went without a good-bye.
            Progress::Done(report) if stands => break report,
            Progress::Done(report) => {
                let over = client.is_closed(station.stack()) && station.is_quiet() && came == 0;
                let since = *quiet_since.get_or_insert_with(Instant::now);
                if !over {
                    quiet_since = None;
                } else if since.elapsed() > LINGER {
                    break report;
                }
            }
            _ => {}
        }
    };
    watch.clear();
    screen::print(format_args!(
        "sent {} bytes to {to} in {:.2} s, {:.3} Gbit/s; sum {:016x}, which the receiver confirms; longest pause {:.1} ms",
        report.bytes,
        report.elapsed_ns as f64 / 1e9,
        report.bytes as f64 * 8.0 / report.elapsed_ns.max(1) as f64,
        report.sum,
        watch.longest_ns as f64 / 1e6
    ))?;
    Ok(())
}

fn no_server(e: TransferError, to: Ipv4Addr) -> Box<dyn Error> {
    match e {
        TransferError::Cut(0) => {
            format!(
                "{to} refuses the connection: start that guest with `pregrant front --serve`; one that serves takes \
                 {TRANSFERS_MAX} transfers at a time"
            )
            .into()
        }
        other => other.into(),
    }
}

/// Answers pings, and serves transfers where that is asked for, until a signal.
fn serve<P: Platform, T: Transport>(station: &mut Station<P, T>, transfers: bool, stop: &Stop) -> Result<()>
where
    P::Events: WakeOn,
{
    let mut open: Vec<(TransferServer, Watch)> = Vec::new();
    let mut away_ns = station.now_ns();
    let mut refusing = false;
    while !stop.asked() {
        let now = station.now_ns();
        let listening = open.iter().any(|(_, watch)| !watch.began());
        let full = !listening && open.len() == TRANSFERS_MAX;
        if transfers && !listening && !full {
            open.push((TransferServer::new(station.stack(), PORT)?, Watch::new(now)));
        }
        if !station.is_live() {
            away_ns = now;
        }
        // After a time without a backend, first there is time for a sign of life.
        let counts = now.saturating_sub(away_ns) > SILENCE_MOST.as_nanos() as u64 / 2;
        open.iter().for_each(|(server, _)| server.limit_silence(station.stack(), SILENCE_MOST, counts));
        let mut steps = Vec::new();
        let due = if open.is_empty() { Duration::MAX } else { PATIENCE_CHECK };
        let came = station.turn::<Box<dyn Error>>(due, |stack, now| {
            steps.extend(open.iter_mut().map(|(server, _)| server.pump(stack, now)));
            Ok(())
        })?;
        if full && !refusing && came > 0 && station.requests(PORT) > 0 {
            log::warn!(
                "refusing a transfer: {TRANSFERS_MAX} are running; further refusals are not logged until one of them ends"
            );
            refusing = true;
        }
        refusing &= full;
        let now = station.now_ns();
        let mut at = 0;
        for step in steps {
            let (server, watch) = &mut open[at];
            let over = match step {
                Ok(progress @ Progress::Done(report)) => {
                    watch.check(now, came, progress, 0);
                    let over = server.is_closed(station.stack());
                    if over {
                        screen::print(format_args!(
                            "received {} bytes in {:.2} s; sum {:016x}; longest pause {:.1} ms",
                            report.bytes,
                            report.elapsed_ns as f64 / 1e9,
                            report.sum,
                            watch.longest_ns as f64 / 1e6
                        ))?;
                    }
                    over
                }
                Ok(progress) => {
                    watch.check(now, came, progress, 0);
                    false
                }
                Err(e) => {
                    log::warn!("receiving a transfer failed: {e}; start it again at its sender");
                    true
                }
            };
            if over {
                let (server, _) = open.remove(at);
                server.end(station.stack());
            } else {
                at += 1;
            }
        }
    }
    Ok(())
}

struct Standstill {
    bytes: u64,
    since_ns: u64,
}

impl Standstill {
    /// How long nothing has moved, given that `bytes` were moved so far. Time without a backend or
    /// a connection (not `live`) does not count.
    fn check(&mut self, bytes: u64, live: bool, now_ns: u64) -> Duration {
        if bytes != self.bytes || !live {
            *self = Self { bytes, since_ns: now_ns };
        }
        Duration::from_nanos(now_ns.saturating_sub(self.since_ns))
    }
}

/// How a transfer goes: its pauses, and a line of progress.
struct Watch {
    progress: screen::Progress,
    last_came_ns: Option<u64>,
    longest_ns: u64,
    shown: (u64, u64),
}

impl Watch {
    fn new(now_ns: u64) -> Self {
        Self { progress: screen::Progress::new(), last_came_ns: None, longest_ns: 0, shown: (now_ns, 0) }
    }

    fn began(&self) -> bool {
        self.last_came_ns.is_some()
    }

    /// Call it after each turn, in which `came` frames came.
    fn check(&mut self, now_ns: u64, came: usize, progress: Progress, of: u64) {
        let Progress::Moving(bytes) = progress else { return };
        let last = *self.last_came_ns.get_or_insert(now_ns);
        if came > 0 {
            self.longest_ns = self.longest_ns.max(now_ns - last);
            self.last_came_ns = Some(now_ns);
        }
        let (shown_ns, shown_bytes) = self.shown;
        if now_ns - shown_ns >= 500_000_000 && of > 0 {
            let rate = (bytes - shown_bytes) as f64 * 8.0 / (now_ns - shown_ns) as f64;
            self.progress.show_long(format_args!("{} of {} MiB, {rate:.3} Gbit/s", bytes >> 20, of >> 20));
            self.shown = (now_ns, bytes);
        }
    }

    fn clear(&self) {
        self.progress.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standstill_is_time_with_a_backend_in_which_nothing_moves() {
        let mut standstill = Standstill { bytes: 0, since_ns: 5 };
        let stands =
            [(0, true, 9), (0, true, 10), (1, true, 11), (1, true, 14), (1, false, 90), (1, true, 92)];
        let stands = stands.map(|(bytes, live, now)| standstill.check(bytes, live, now).as_nanos());
        assert_eq!(stands, [4, 5, 0, 3, 0, 2]);
    }

    #[test]
    fn bytes_have_units() {
        assert_eq!([amount("0"), amount("64k"), amount("2G")], [Ok(0), Ok(65536), Ok(2 << 30)]);
        for bad in ["", "k", "-1", "1.5G", "1T", "99999999999G"] {
            assert!(amount(bad).is_err(), "{bad}");
        }
    }
}
