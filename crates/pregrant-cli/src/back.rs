//! `pregrant back`: the backend of a driver domain as a process of its own.
//!
//! ```text
//!   vifs of all guests <--> Backend --frames--> learning switch
//!                              |
//!   SIGTERM: drain, leave state 4 (or --close: 5, 6)      status socket <-- pregrant top
//! ```
//! This thread is the control thread: xenstore, scripts, status. Frames move in workers' threads
//! (`--workers`). [`daemon`](crate::daemon) has the part that all backends share.

#[cfg(feature = "xen")]
mod handover;
mod loopback;
#[cfg(feature = "xen")]
mod xen;

use crate::amount::amount;
use crate::choice::choice;
use crate::daemon::{DaemonArgs, chosen};
use crate::experiment::{ExperimentArgs, HEADING};
use crate::front::{NO_FOREIGN, NO_GUEST_COPY};
use crate::path_choice::path_choice;
use crate::usage::{Given, Usage};
use clap::builder::RangedI64ValueParser;
use clap::{Args, ValueEnum};
use pregrant::net::back::VifConfig;
use pregrant::net::batch::Thresholds;
use pregrant::net::features::BackFeatures;
use pregrant::net::path::PathConfig;
use pregrant::net::path::staging::Heads;
use pregrant::net::path::staging::keys::{ALL_DATA_LENS, Offer};
use pregrant::net::path::{PathName, gref_mapping, persistent};
use pregrant::platform::Platform;
use pregrant::xenstore::Transport;
use pregrant_host::drivers::net::stations::{Spoofing, Stations};
use pregrant_host::drivers::{
    CaptureFile, Captured, DeviceChoice, DeviceClass, Hotplug, Net, NetConfig, PortProvider, RxContext, Taps,
};
use pregrant_host::ports::switch::{LEND_ABOVE, Switch};
use pregrant_host::ports::tap::TransportKind;
use std::error::Error;
use std::path::PathBuf;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Arguments of `pregrant back`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  pregrant back
  pregrant back --vif 5 --vif 6.1
  pregrant back --take 5.0
  pregrant back --take 5.0 --give-back 5.0
  pregrant back --give-back 5.0
  pregrant back --port switch
  pregrant back --capture 5.0=/tmp/vif5.0.pcap
  pregrant back --loopback /tmp/xen
  pregrant back --loopback /tmp/xen --port tap

On Xen it serves the vifs of the domain in which it runs (dom0 or a driver domain), each as a tap, vif5.0; on the
loopback through one learning switch, or as on Xen (--port tap, as root). SIGTERM and SIGINT end it in good order: what guests sent is answered, and their
vifs stay connected (state 4) for the next backend, which goes on with the live rings; so it does after kill -9. With
--close the vifs are closed instead (states 5 and 6): Linux guests need a new vif then. `pregrant top` shows what it
does, `pregrant doctor` what is missing.")]
pub struct BackArgs {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Serve this guest's vifs alone, or this one of them
    ///
    /// The others are left to the kernel's netback. May be repeated
    #[arg(long, value_name = "DOMID[.HANDLE]", value_parser = chosen)]
    vif: Vec<DeviceChoice>,
    /// Take a running guest's vif from the kernel's netback, or from pregrant_back.ko
    ///
    /// Nothing is served beside it but what --take and --vif name. May be repeated
    #[arg(long, value_name = "DOMID[.HANDLE]", value_parser = chosen, conflicts_with = "loopback")]
    take: Vec<DeviceChoice>,
    /// Give vifs to the kernel's netback, or to its module pregrant_back where that is loaded
    ///
    /// With --take at the end, else at once those that a stopped backend left connected. The
    /// interface of one that the module took up by itself is plugged in
    #[arg(long, value_name = "DOMID[.HANDLE]", value_parser = chosen, conflicts_with_all = ["loopback", "vif", "close"])]
    give_back: Vec<DeviceChoice>,
    /// Connect vifs to taps of this machine, or to one switch
    ///
    /// A tap each (the default on Xen), or one switch in this process (on the loopback)
    #[arg(long, value_name = "PORT")]
    port: Option<Port>,
    /// At a switch, put one guest's frames into another guest's ring in the receiver's turn, or at
    /// once in the sender's (where one worker serves both)
    #[arg(long, help_heading = HEADING, hide = true, value_name = "CONTEXT", default_value = "worker", value_parser = choice(CONTEXTS, RxContext::name))]
    rx_context: RxContext,
    /// At a switch, let this guest send with other addresses than its vif's `mac`
    ///
    /// This guest, this vif of it, or all. May be repeated
    #[arg(long, value_name = "DOMID[.HANDLE]|all", value_parser = whose)]
    allow_mac_spoofing: Vec<Whose>,
    /// Write this vif's frames to a pcap file, for tcpdump or Wireshark
    ///
    /// In both directions; an old file is overwritten. May be repeated
    #[arg(long, value_name = "VIF=FILE", value_parser = capture)]
    capture: Vec<Wanted>,
    /// End a capture before its file is longer than this; the vif's frames go on
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = amount, requires = "capture")]
    capture_limit: u64,
    /// How frames are written to taps and read from them
    #[arg(long, help_heading = HEADING, hide = true, value_name = "WAY", default_value = "cheaper", value_parser = choice(WAYS, TransportKind::name))]
    tap_way: TransportKind,
    /// Who runs the vifs' scripts
    ///
    /// Without it the toolstack in dom0, and this process elsewhere, also on the loopback
    #[arg(long, value_name = "WHO")]
    hotplug: Option<HotplugBy>,
    /// The socket of the helper that runs hotplug scripts for this process
    ///
    /// Of `pregrant hotplug`, by dist/pregrant-hotplug.socket
    #[arg(long, value_name = "PATH")]
    hotplug_socket: Option<PathBuf>,
    /// How to move frames that are neither in staging buffers nor in mapped pages
    #[arg(long, value_name = "PATH", default_value = "copy", value_parser = path_choice(PATHS, Fallback::name, |path| path.heads))]
    path: Fallback,
    /// Lengths of staging buffers to offer, such as 256,2048
    ///
    /// With `off` staging is not offered
    #[arg(long, value_name = "N,N", default_value = "64,128,256,2048,4096,65535", value_parser = staging_offer)]
    staging: Offer,
    /// Do not offer feature-sg
    ///
    /// A guest then sends no frame over several slots and no large TCP segment, and drops what is
    /// longer than a page. One that sends them all the same is served
    #[arg(long)]
    no_sg: bool,
    /// Pages of a queue and direction to keep mapped, for feature-persistent
    ///
    /// After their first use, for frontends that have it; 0: do not offer it
    #[arg(long, value_name = "PAGES", default_value_t = persistent::DEFAULT_LIMIT as u32, value_parser = clap::value_parser!(u32).range(..=4096))]
    persistent_grants: u32,
    /// Pages of a queue that its guest may ask to keep mapped
    ///
    /// By the control messages GET, ADD and DEL_GREF_MAPPING; 0: answer these with NOT_SUPPORTED
    #[arg(long, value_name = "PAGES", default_value_t = gref_mapping::DEFAULT_LIMIT as u32, value_parser = clap::value_parser!(u32).range(..=gref_mapping::LIMIT_MAX as i64))]
    gref_mappings: u32,
    /// With --path map and staging+map: copy frames of at most this many bytes, instead of mapping
    /// them
    #[arg(long, help_heading = HEADING, hide = true, value_name = "BYTES", default_value_t = Thresholds::USUAL.copy_below, value_parser = threshold())]
    copy_below: u32,
    /// Frames of more than this many bytes are not copied: the tap reads them in the guest's pages,
    /// if these are mapped (staging, persistent, gref-mapping); 65535: copy all
    #[arg(long, help_heading = HEADING, hide = true, value_name = "BYTES", default_value_t = Thresholds::USUAL.lend_from, value_parser = threshold())]
    lend_from: u32,
    /// At a switch, copy frames of more than this many bytes once, from guest to guest, if the
    /// sender's pages are mapped (staging, persistent, gref-mapping); 65535: copy all twice
    #[arg(long, help_heading = HEADING, hide = true, value_name = "BYTES", default_value_t = LEND_ABOVE, value_parser = threshold())]
    lend_between: u32,
    #[command(flatten)]
    pub experiment: ExperimentArgs,
}

fn threshold() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(i64::from(Thresholds::LEAST)..=i64::from(u16::MAX))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Port {
    /// A tap, vifDOMID.HANDLE, which the kernel routes or bridges
    Tap,
    /// A learning switch
    Switch,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum HotplugBy {
    /// xl, or in another domain its `xl devd`: vifs are connected when `hotplug-status` says
    /// "connected", and directories of vifs that are over are left to it
    Toolstack,
    /// This process: runs the vif's `script`, or joins its `bridge`
    #[value(name = "self")]
    Own,
    /// No one
    None,
}

const WAYS: &[(TransportKind, &str)] = &[
    (TransportKind::Cheaper, "What is cheapest on this machine, measured at the first tap"),
    (
        TransportKind::Vhost,
        "Without a system call, by vhost-net (module vhost_net); where there is none, what is cheapest",
    ),
    (TransportKind::Burst, "A system call for each burst, by io_uring"),
    (TransportKind::Frame, "A system call for each frame"),
];

const CONTEXTS: &[(RxContext, &str)] = &[
    (RxContext::Worker, "The receiver's: they wait in its queue"),
    (RxContext::Same, "The sender's: they go on at once, and it pays for the time"),
];

const PATHS: &[(Fallback, &str)] = &[
    (Fallback { of: PathName::Copy, heads: false }, "Batched grant copy"),
    (Fallback { of: PathName::Map, heads: false }, "Map and unmap, as Linux's netback does"),
    (
        Fallback { of: PathName::Copy, heads: true },
        "By grant copy, except a long frame's head, which is in its staging buffer",
    ),
    (Fallback { of: PathName::Map, heads: true }, "Headers from staging buffers, payload by map and unmap"),
    (
        Fallback { of: PathName::Foreign, heads: false },
        "Loopback only: map the whole memory of guests that ask for it, which ends their isolation; others by copy",
    ),
    (
        Fallback { of: PathName::GuestCopy, heads: false },
        "Loopback only: let guests copy received frames out of the backend's pages; others by copy",
    ),
];

/// The path for frames that no other path moves, or for the rest of frames.
#[derive(Clone, Copy, Debug)]
struct Fallback {
    of: PathName,
    /// The heads of long frames are in staging buffers, and the rest uses the path `of`.
    heads: bool,
}

impl Fallback {
    fn name(self) -> &'static str {
        match (self.heads, self.of) {
            (false, of) => of.name(),
            (true, of) => PathName::staging_and(of),
        }
    }
}

impl BackArgs {
    /// Returns the vifs to serve; an empty list means all.
    fn chosen(&self) -> Vec<DeviceChoice> {
        self.vif.iter().chain(&self.take).copied().collect()
    }

    /// Returns the remote side of vifs: the one that an option names, or else the default.
    fn port(&self, on_loopback: bool) -> Port {
        self.port.unwrap_or(if on_loopback { Port::Switch } else { Port::Tap })
    }

    /// Refuses options that would have no effect.
    fn check(&self, given: &Given) -> std::result::Result<(), Usage> {
        self.daemon.check(given)?;
        if self.take.is_empty() && !self.give_back.is_empty() {
            for option in given.others_than(&["give-back"]) {
                given
                    .refuse(option, "--give-back without --take gives vifs away at once, and serves none")?;
            }
        }
        if self.path.heads && self.staging == Offer::NONE {
            given.refuse("path", "there are no heads without staging buffers (--staging off)")?;
        }
        let at_switch = self.port(self.daemon.loopback.is_some()) == Port::Switch;
        if !at_switch {
            let why = "a tap's guest sends with any address, unless this machine's bridge or its packet filter says otherwise \
                       (it is for --port switch)";
            given.refuse("allow-mac-spoofing", why)?;
            given.refuse(
                "rx-context",
                "a tap's guest sends to this machine's kernel (it is for --port switch)",
            )?;
            given.refuse("lend-between", "taps have no receivers' pages (it is for --port switch)")?;
        }
        if at_switch {
            given.refuse("tap-way", "the switch has no taps (they are for --port tap)")?;
            given.refuse(
                "hotplug-socket",
                "the switch has no interfaces that a script would plug in (--port tap has)",
            )?;
            given.refuse("lend-from", "it is for taps (--port tap); lend-between is for the switch")?;
            if self.daemon.loopback.is_some() {
                given.refuse(
                    "hotplug",
                    "the switch has no interfaces that a script would plug in (--port tap has)",
                )?;
            }
        }
        if self.path.of != PathName::Map {
            given.refuse("copy-below", format_args!("--path {} maps no frames", self.path.name()))?;
        }
        if matches!(self.hotplug, Some(HotplugBy::Toolstack | HotplugBy::None)) {
            given.refuse("hotplug-socket", "this process runs scripts with --hotplug self alone")?;
        }
        let chosen = self.chosen();
        let is_served = |of: &DeviceChoice| {
            chosen.is_empty()
                || chosen.iter().any(|c| {
                    c.front == of.front
                        && (c.handle.is_none() || of.handle.is_none() || c.handle == of.handle)
                })
        };
        if let Some(of) = self.allow_mac_spoofing.iter().filter_map(|whose| whose.0).find(|of| !is_served(of))
        {
            let front = of.front;
            return Err(Usage::new(format_args!(
                "--allow-mac-spoofing {front} has no effect: no such vif of domain {front} is among those that are served (--vif, --take)"
            )));
        }
        match self.capture.iter().find(|of| !DeviceChoice::serve(&chosen, of.front, of.handle)) {
            None => Ok(()),
            Some(Wanted { front, handle, .. }) => Err(Usage::new(format_args!(
                "--capture {front}.{handle}=... has no effect: vif {front}.{handle} is not among those that are served (--vif, --take)"
            ))),
        }
    }
}

pub fn run(mut args: BackArgs, given: &Given) -> Result<()> {
    args.check(given)?;
    args.daemon.rx_context = args.rx_context;
    match &args.daemon.loopback {
        Some(dir) => loopback::run(dir, &args),
        None if args.path.of == PathName::Foreign => Err(NO_FOREIGN.into()),
        None if args.path.of == PathName::GuestCopy => Err(NO_GUEST_COPY.into()),
        #[cfg(feature = "xen")]
        None => xen::run(&args),
        #[cfg(not(feature = "xen"))]
        None => Err(crate::front::no_xen().into()),
    }
}

impl From<HotplugBy> for Hotplug {
    fn from(by: HotplugBy) -> Self {
        match by {
            HotplugBy::Toolstack => Self::Toolstack,
            HotplugBy::Own => Self::Own,
            HotplugBy::None => Self::None,
        }
    }
}

/// Makes each vif a tap of this machine.
fn taps(args: &BackArgs, hotplug: Hotplug) -> Result<Box<dyn PortProvider>> {
    let mut taps = Taps::new()?;
    taps.set_way(args.tap_way);
    taps.set_hotplug(hotplug);
    if let Some(socket) = &args.hotplug_socket {
        taps.ask_for_scripts_at(socket.clone());
    }
    Ok(Box::new(taps))
}

/// Returns the classes of devices that `pregrant back` serves.
fn classes<P: Platform, T: Transport + 'static>(
    args: &BackArgs,
    hotplug: Hotplug,
    chosen: Vec<DeviceChoice>,
    provider: Box<dyn PortProvider>,
) -> Vec<Box<dyn DeviceClass<P, T>>> {
    let Fallback { of: path, heads } = args.path;
    let (persistent, gref_mapping) = (args.persistent_grants as usize, args.gref_mappings as usize);
    let thresholds = Thresholds { copy_below: args.copy_below, lend_from: args.lend_from };
    let paths = PathConfig {
        fallback: if path == PathName::Map { path } else { PathName::Copy },
        thresholds,
        staging: Heads { heads },
        persistent,
        gref_mapping,
        foreign: false,
        guest_copy: false,
    }
    .allowing(path);
    let mapped_pages = paths.mapped_pages();
    let sg = !args.no_sg;
    let features = BackFeatures {
        staging: args.staging.clone(),
        mapped_pages,
        sg,
        gso_tcpv4: sg,
        gso_tcpv6: sg,
        ..BackFeatures::default()
    };
    let vif = VifConfig { features, paths, ..VifConfig::default() };
    vec![Box::new(Net::new(NetConfig { vif, hotplug, chosen }, provider))]
}

/// Parses `off`, or the lengths of staging buffers.
fn staging_offer(text: &str) -> std::result::Result<Offer, String> {
    if text == "off" {
        return Ok(Offer::NONE);
    }
    let mut offer = Offer::all();
    let lens: std::result::Result<Vec<u32>, _> = text.split(',').map(str::parse).collect();
    match lens {
        Ok(lens) if lens.iter().all(|len| ALL_DATA_LENS.contains(len)) => {
            offer.sizes.retain(|len| lens.contains(&len.value()));
            Ok(offer)
        }
        _ => Err(format!(
            "off, or some of the lengths {}, with commas between them",
            ALL_DATA_LENS.map(|n| n.to_string()).join(", ")
        )),
    }
}

/// Makes the switch the remote side of vifs.
fn at_switch(switch: &Switch, args: &BackArgs) -> Box<dyn PortProvider> {
    let mut stations = Stations::at(switch);
    switch.lend_above(args.lend_between);
    stations.allow_mac_spoofing(args.allow_mac_spoofing.iter().map(|whose| whose.0));
    Box::new(stations)
}

/// A capture that an option asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Wanted {
    front: u16,
    handle: u32,
    path: PathBuf,
}

/// Parses a capture's vif and file, such as `5.0=/tmp/x.pcap`.
fn capture(text: &str) -> std::result::Result<Wanted, String> {
    let expected = "one vif and a file: 5.0=/tmp/x.pcap";
    let (vif, path) = text.split_once('=').filter(|(_, path)| !path.is_empty()).ok_or(expected)?;
    match chosen(vif) {
        Ok(DeviceChoice { front, handle: Some(handle) }) => Ok(Wanted { front, handle, path: path.into() }),
        _ => Err(expected.into()),
    }
}

/// Creates the files of captures before anything else begins.
fn capture_files(args: &BackArgs) -> Result<Vec<CaptureFile>> {
    let open = |wanted: &Wanted| CaptureFile::open(wanted.front, wanted.handle, wanted.path.clone());
    Ok(args.capture.iter().map(open).collect::<std::result::Result<_, _>>()?)
}

/// Wraps the remote side in captures where they are requested. This process is the domain's only
/// backend, so it may write the captures' files.
fn captured(
    provider: Box<dyn PortProvider>,
    files: Vec<CaptureFile>,
    args: &BackArgs,
) -> Result<Box<dyn PortProvider>> {
    if files.is_empty() {
        return Ok(provider);
    }
    Ok(Box::new(Captured::new(provider, files, args.capture_limit)?))
}

/// The guests that may send with source addresses other than their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Whose(Spoofing);

/// Parses `all`, or guests in the form that [`chosen`] accepts.
fn whose(text: &str) -> std::result::Result<Whose, String> {
    if text == "all" {
        return Ok(Whose(None));
    }
    let chosen = chosen(text).map_err(|e| format!("all, or {e}"))?;
    Ok(Whose(Some(chosen)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_may_be_let_spoof_one_by_one() {
        assert_eq!((whose("all"), whose("5")), (Ok(Whose(None)), Ok(Whose(chosen("5").ok()))));
        for bad in ["", "5.", ".0", "x", "70000", "5.0.0"] {
            assert!(whose(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_capture_is_of_one_vif() {
        let wanted = |front, handle, path: &str| Ok(Wanted { front, handle, path: path.into() });
        assert_eq!(capture("5.0=/tmp/x.pcap"), wanted(5, 0, "/tmp/x.pcap"));
        assert_eq!(capture("vif5.1=a=b"), wanted(5, 1, "a=b"));
        for bad in ["", "5.0", "5.0=", "5=/tmp/x", "all=/tmp/x", "=/tmp/x", "/tmp/x"] {
            assert!(capture(bad).is_err_and(|why| why.contains("5.0=/tmp/x.pcap")), "{bad}");
        }
    }
}
