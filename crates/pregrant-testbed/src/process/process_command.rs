//! Commands of the testbed to its processes: one JSON object a line. Their answers are in
//! [`report`](super::report).

use super::disks::disks_command::DisksCommand;
use crate::named;
use pregrant::blk::path::PathName as DiskPath;
use pregrant::net::batch::Thresholds;
use pregrant::net::front::lent::RX_HEAD_BYTES;
use pregrant::net::path::PathName;
use pregrant_host::drivers::{Mode, Placement, RxCoalescing, RxContext};
use serde::{Deserialize, Serialize};

named! {
    /// Which way the frames of a case go, as the guest sees it.
    pub enum Dir {
        /// From the guest
        Tx = "tx",
        /// To the guest
        Rx = "rx",
        /// To the back and straight back: latency.
        #[value(skip)]
        Echo = "echo",
    }
}

named! {
    /// The guest's action on frames that came.
    pub enum RxWay {
        /// Copies them to private memory
        Copy = "copy",
        /// Copies their heads; the rest stays in the pages that the backend wrote to, until the
        /// guest has done with it
        Reference = "reference",
        /// Copies them, and again each one into memory of its own, allocated for it, where its
        /// headers are read
        #[value(skip)]
        Allocate = "allocate",
        /// Copies them, and gives them to a TCP/IP stack, which drops them
        #[value(skip)]
        Stack = "stack",
        /// A hook drops them
        #[value(skip)]
        Hook = "hook",
        /// Copies them and sends them back
        #[value(skip)]
        Return = "return",
        /// A hook sends them back, in the buffers that they came in
        #[value(skip)]
        SendOn = "send-on",
    }
}

named! {
    /// Which of a guest's buffers its frames are in.
    pub enum Reuse {
        /// Each buffer is used as often as the others
        Uniform = "uniform",
        /// Nine of ten frames are in an eighth of the buffers
        Skewed = "skewed",
        /// The buffers are used one after another
        Circular = "circular",
    }
}

named! {
    /// The memory that frames are sent from.
    pub enum TxWay {
        /// Copied to the pages of the static pool, which the backend has mapped
        Copy = "copy",
        /// From where they are, in pages of the guest's own that the backend has mapped
        Own = "own",
    }
}

/// The buffers in a guest's own memory from which its frames are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Buffers {
    /// Pages of a buffer. A frame begins at a page, and uses as many as it needs.
    pub pages: usize,
    /// The order in which buffers are used.
    pub reuse: Reuse,
    /// The bytes that the guest writes to a buffer before each frame is sent.
    pub fill: Fill,
}

named! {
    /// The bytes that a guest writes to a buffer of its own.
    pub enum Fill {
        /// The whole frame, as a kernel that copies it from a program
        Whole = "whole",
        /// Its head, as a kernel that sends a file's pages from where they are
        Head = "head",
    }
}

/// Serializes named values as their names.
pub mod by_name {
    use serde::{Deserialize, Deserializer, Serializer, de};
    use std::fmt::Display;
    use std::str::FromStr;

    pub fn serialize<T: Display, S: Serializer>(named: &T, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(named)
    }

    pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

/// Slots of a ring, and staging buffers of a direction at least.
pub const RING_SLOTS: u32 = 256;
/// Largest number of staging buffers of a direction: ids number those of both directions.
pub const BUFFERS_MAX: u32 = 16384;

/// The life of one vif: it connects, moves numbered frames for some time, and closes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    pub front: u16,
    /// Number of the vif, which the toolstack has created.
    pub handle: u32,
    pub dir: Dir,
    /// Length of a frame in bytes.
    pub size: usize,
    /// Largest number of frames in a burst.
    pub burst: usize,
    /// The number of seconds for which frames are counted.
    pub seconds: f64,
    #[serde(with = "by_name")]
    pub mode: Mode,
    #[serde(with = "by_name")]
    pub path: PathName,
    /// Staging's data length for both directions, when the path is `staging`.
    pub data_len: Option<u32>,
    /// The data lengths of TX and RX, if they differ; None: no buffers in that direction.
    pub data_lens: Option<[Option<u32>; 2]>,
    /// `map` copies frames of no more bytes.
    pub copy_below: u32,
    /// Staging buffers of each direction and queue, where more than the ring has slots.
    pub staging_buffers: u32,
    /// The path for frames that no other path moves, or for the rest of frames.
    #[serde(with = "by_name")]
    pub rest: PathName,
    /// With `staging`: the heads of longer frames are sent from their staging buffers.
    pub heads: bool,
    pub queues: u32,
    /// True if the back keeps redo pages, without which a successor cannot take over its rings.
    pub redo: bool,
    /// For TX: the sink asks for private copies of whole frames, as a switch does; otherwise it
    /// reads heads in place.
    pub look: bool,
    /// For RX: what the guest does with frames.
    pub rx: RxWay,
    /// RX by reference: number of bytes of a longer frame that are copied at first.
    pub rx_head: usize,
    /// The number of frames that a sleeping guest waits for.
    #[serde(with = "by_name")]
    pub rx_coalescing: RxCoalescing,
    /// TX: the guest's own buffers from which frames are sent; None: frames are copied to the
    /// vif's.
    pub buffers: Option<Buffers>,
    /// Entries of the queue's table of references; None: as many as a backend has.
    pub gref_pages: Option<usize>,
    /// Frames per second that the guest offers (TX only); None: as many as the ring accepts.
    pub rate: Option<f64>,
    /// True if the guest yields its processor for a moment whenever it finds nothing to do.
    pub gives_way: bool,
    /// The behaviour of another guest meanwhile, which may also have a vif.
    pub beside: Option<Nuisance>,
}

impl Case {
    /// Creates a case with one queue and bursts of 64 frames of 64 bytes, without a duration and a
    /// vif.
    pub fn of(dir: Dir, path: PathName) -> Self {
        Self {
            front: 0,
            handle: 0,
            dir,
            size: 64,
            burst: 64,
            seconds: 0.0,
            mode: Mode::Adaptive,
            path,
            data_len: None,
            data_lens: None,
            copy_below: Thresholds::USUAL.copy_below,
            staging_buffers: 0,
            rest: path,
            heads: false,
            queues: 1,
            redo: true,
            look: false,
            rx: RxWay::Copy,
            rx_head: RX_HEAD_BYTES,
            rx_coalescing: RxCoalescing::Off,
            buffers: None,
            gref_pages: None,
            rate: None,
            gives_way: false,
            beside: None,
        }
    }
}

named! {
    /// What the guest next to the measured one does.
    pub enum Nuisance {
        /// It is not there
        #[value(skip)]
        Absent = "absent",
        /// It uses up its processor, and has no vif
        #[value(skip)]
        Spinning = "spinning",
        /// It is connected and does nothing
        Idle = "idle",
        /// Its ring index is wrong; closed, it connects again and does it again
        Broken = "broken",
        /// It sends events without end, with an empty ring
        Storming = "storming",
        /// It changes its xenstore state without end
        Flipping = "flipping",
        /// It posts one RX slot and takes nothing, while frames for it wait
        Stalled = "stalled",
        /// It sends frames of the measured guest's kind as fast as they are taken
        Greedy = "greedy",
        /// It sends frames of 65535 bytes as fast as they are taken
        GreedyLong = "greedy-long",
    }
}

impl Nuisance {
    /// Returns true if this guest has a vif.
    pub fn has_vif(self) -> bool {
        !matches!(self, Self::Absent | Self::Spinning)
    }
}

/// The settings of a back's worker threads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerSetup {
    /// Number of workers, if each serves several vifs.
    pub workers: usize,
    /// The rule by which a queue gets its worker.
    #[serde(with = "by_name")]
    pub place: Placement,
    /// The worker in whose turn frames go from one guest's queue to another guest's.
    #[serde(with = "by_name")]
    pub rx_context: RxContext,
    #[serde(with = "by_name")]
    pub mode: Mode,
    /// Worker n is pinned to the nth of these cores, starting again after the last; empty: no
    /// pinning.
    pub cores: Vec<usize>,
}

/// One of many guests, each of which has vif 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// The guest's domain, which the toolstack has created with its vif.
    pub domid: u16,
    /// Number of queues of the guest's vif.
    pub queues: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Load {
    /// The index of this guest among all guests of the process.
    pub member: usize,
    /// Length of the guest's frames in bytes.
    pub size: usize,
}

/// The devices of a crowd's backend, and how bytes travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Devices {
    /// Vifs, with the path of frames that are in no staging buffer.
    Vifs(#[serde(with = "by_name")] PathName),
    /// The devices are disks.
    Disks(#[serde(with = "by_name")] DiskPath),
}

/// A command to a process. When the process' input ends, it stops.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ProcessCommand {
    /// Back: have threads serve the queues in all commands that follow. It must be the first
    /// command; without it the only thread serves them. Answer: `Done`.
    StartWorkers(WorkerSetup),
    /// Play this process' part of a case. Answer: `Case`.
    Case(Case),
    /// Back: serve a learning switch until the given number of vifs have come and gone. Answer:
    /// `Switch`.
    Switch {
        /// Number of vifs that must have connected and closed before the command ends.
        vifs: u64,
        /// Go on with a dead predecessor's count of frames; else begin a new one.
        succeed: bool,
    },
    /// Back: serve many guests by these workers from now on; must be the first command. Answer:
    /// `Done`.
    Serve(WorkerSetup, Devices),
    /// Back with many guests: send frames back, or only count them. Answer: `Done`.
    SendBack(bool),
    /// Back with many guests: describe how the platform works. Answer: `Described`.
    Describe,
    /// Back with many guests: report the resources that were used. Answer: `Spent`.
    Spent,
    /// Back with many guests: report the frames that arrived. Answer: `Seen`.
    Seen,
    /// Guest: be a nuisance with vif 0, from a report on, until killed.
    Annoy {
        nuisance: Nuisance,
        /// Length of the frames in bytes, if any are sent.
        size: usize,
    },
    /// Guest: connect vif 0 and take part in a TCP transfer over it. Answer: `Transfer`.
    Transfer(Transfer),
    /// Guests: attach to these domains and connect their vifs; they stay. Answer: `Done`.
    Gather {
        members: Vec<Member>,
        #[serde(with = "by_name")]
        path: PathName,
        /// Staging's data length, when the path is `staging`.
        data_len: Option<u32>,
        /// Number of buffers per direction, if there are more than slots.
        buffers: u32,
    },
    /// Guests: keep the rings of these guests full, in turn, until the next command. Answer:
    /// `Done`, once all rings are full.
    Send(Vec<Load>),
    /// Guests: the first one sends one frame at a time, which come back. Answer: `Case`.
    Echo {
        seconds: f64,
        #[serde(with = "by_name")]
        mode: Mode,
    },
    /// Guests: send no more, and wait until everything is answered. Answer: `Sent`.
    Rest,
    Disks(DisksCommand),
}

/// A guest's part in a TCP transfer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Transfer {
    /// The last byte of this guest's own address, 10.0.0.x.
    pub own: u8,
    /// The last byte of the peer's address; None: this guest is the server.
    pub to: Option<u8>,
    /// Number of bytes to send, or to expect.
    pub bytes: u64,
    /// Staging's data length; None: ordinary grants.
    pub data_len: Option<u32>,
    /// Largest length of a packet in bytes.
    pub mtu: usize,
    /// The server reports when this many bytes have arrived.
    pub report_at: Option<u64>,
    pub arrivals: bool,
}
