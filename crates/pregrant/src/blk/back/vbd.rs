//! One disk at the back: all that is specific to a disk, besides the handshake of any device
//! ([`Back`]).
//!
//! ```text
//!   offer       what this back takes                                          blk/features.rs
//!   connect     image opened, and written down (kept_image) --> the front's keys --> rings, channels --> queues live --> figures written, and then state 4
//!   resize      `sectors` and the state once more: the front checks        also by a successor whose image grew meanwhile
//!   disconnect  nothing stays mapped or bound, but what the disk still works on: the closer waits until that is done (under_way)
//! ```
//! The state becomes Connected only after the image is open; if it cannot be opened, the device
//! closes with an error that says why.
//!
//! What a front may do: write any keys, corrupt its rings, disappear. Invalid rings close the
//! device; a device that would exceed its guest's limit of mapped pages (XSA-300) does not connect.

use super::flush_fault::FlushFault;
use super::journaled_ring::{JOURNAL_BYTES, Journal, JournaledRing};
use super::kept_image::{ImageRecord, KEPT_IMAGE_BYTES, KeptImage};
use super::queue::{BackQueue, QueueParts, QueueShare};
use super::request::Rules;
use crate::blk::disk::{DiskFigures, Image, OpenError, Opening};
use crate::blk::features::{
    Accepted, BackFeatures, DEVICE_PATH, DEVICE_TYPE, FrontRequest, INDIRECT_SEGMENTS_MAX, LARGE_SECTORS,
    MODE, PARAMS, QueueKeys, discards_enabled, figures_pairs, mode_writes, of_back_connection,
    offers_barrier, queue_prefix, read_figures, resized_pairs, type_is_cdrom,
};
use crate::blk::path::{AnyPath, PathName, persistent};
use crate::platform::{Access, Events, PeerMem, Platform};
use crate::ring::RedoWords;
use crate::units::DomId;
use crate::wire::blkif::Abi;
use crate::xenbus::KeyName;
use crate::xenbus::back::{
    Back, BackDevice, Begin, Changed, ClassRules, Connect, Connection, Drained, KeptMemory, PageShare,
    PageUse,
};
use crate::xenbus::bus::{DeviceBus, OwnKeys};
use crate::xenbus::connect_error::{ConnectError, TooManyPages};
use crate::xenbus::key_source::{Pairs, flag};
use crate::xenbus::state::Handshake;
use crate::xenbus::{Class, XenbusState};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

/// What a back offers to its disks' fronts, and how it serves them.
#[derive(Clone, Copy, Debug)]
pub struct VbdConfig {
    /// The features that are advertised.
    pub features: BackFeatures,
    /// The path for a front without persistent grants: `copy` or `map`.
    pub fallback: PathName,
    /// Largest number of pages per queue that stay mapped, for a front with persistent grants.
    pub persistent_pages: usize,
    /// Largest number of segments of all requests in flight, over all queues: copied, or mapped
    /// within the guest's limit.
    pub parts_in_flight: usize,
    /// Whether a guest may see the image's own logical sectors if they are longer than 512 bytes.
    pub native_sectors: bool,
}

impl Default for VbdConfig {
    fn default() -> Self {
        Self {
            features: BackFeatures::default(),
            fallback: PathName::Copy,
            persistent_pages: persistent::DEFAULT_LIMIT,
            parts_in_flight: 4096,
            native_sectors: false,
        }
    }
}

/// The result of [trying](Back::try_image) an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Tried {
    /// The image can be opened.
    Opened {
        /// A warning about the image, in words.
        strange: Option<String>,
    },
    /// Another user has the image, and may release it; the text names that user.
    Busy(String),
    /// The image cannot be opened; the text says why, and what to do.
    Failed(String),
}

/// One disk of domain `of`, with its handshake.
pub type BackVbd<P> = Back<Vbd<P>>;

/// A disk without its handshake.
pub struct Vbd<P: Platform> {
    of: DomId,
    config: VbdConfig,
    /// The features that the back of this connection advertised, which was this process or a
    /// predecessor.
    offered: BackFeatures,
    image: Box<dyn Image>,
    /// The properties of the disk that its guest knows. None: the disk is not connected.
    figures: Option<DiskFigures>,
    /// The queues; empty while they are [with their workers](Vbd::hand_out_queues).
    queues: Vec<BackQueue<P>>,
    /// The state shared with each queue; empty while the disk is not connected.
    shares: Vec<Arc<QueueShare>>,
    /// Largest number of pages that all of the disk's queues together may keep mapped.
    allowed: usize,
    /// Whether a flush of this connection has failed.
    flush_failed: Arc<AtomicBool>,
    /// While the disk is connected: the record of its image, if the image ends with this process.
    lasting: Option<(KeptImage, ImageRecord)>,
}

impl<P: Platform> Back<Vbd<P>> {
    /// Creates the back's end of a disk that the toolstack created. Nothing is written to xenstore
    /// yet.
    pub fn new(of: DomId, handle: u32, config: VbdConfig, image: Box<dyn Image>) -> Self {
        let vbd = Vbd {
            of,
            config,
            offered: config.features,
            image,
            figures: None,
            queues: Vec::new(),
            shares: Vec::new(),
            allowed: 0,
            flush_failed: Arc::default(),
            lasting: None,
        };
        Self::around(vbd, of, handle)
    }

    /// Called before the front connects: opens the image as the connect will, and closes it again.
    /// None: the disk is connected, or has no image.
    pub fn try_image<B: DeviceBus>(&mut self, bus: &mut B) -> Result<Option<Tried>, B::Error> {
        if self.figures.is_some() || !has_medium(bus)? {
            return Ok(None);
        }
        let writable = mode_writes(bus.own_text(MODE)?.as_deref());
        let native_sectors = self.config.native_sectors;
        let (guest, params) = (self.of, image_name(bus)?);
        let opening = Opening { guest, params, writable, is_live: false, native_sectors, is_trial: true };
        let tried = match self.image.open(&opening) {
            Ok(_) => Tried::Opened { strange: self.image.strange() },
            Err(OpenError::Busy(why)) => Tried::Busy(why),
            Err(e) => Tried::Failed(format!("{e}")),
        };
        self.image.close();
        Ok(Some(tried))
    }

    /// Call before the disk ends for good. If its image ends with this process, the guest must not
    /// get another one in its place, even if it reconnects: then this returns true, and the record
    /// of the image must be kept.
    pub fn give_up_image(&mut self) -> bool {
        let Some((memory, record)) = self.lasting.take() else { return false };
        memory.store(&ImageRecord { refused: true, ..record });
        true
    }

    /// Checks the length of the disk's image, and [resizes](Self::resize) the disk if the length
    /// has changed. Returns true if it has changed.
    pub fn check_length<B: DeviceBus>(&mut self, bus: &mut B) -> Result<bool, B::Error> {
        let Some(published) = self.figures.as_ref().map(|figures| figures.sectors) else { return Ok(false) };
        match self.image.sectors() {
            Some(sectors) if sectors != published => self.resize(bus, sectors).map(|()| true),
            _ => Ok(false),
        }
    }

    /// Tells the queues and the guest that the image has another length. A disk that is not
    /// connected gets it at its next connect.
    pub fn resize<B: DeviceBus>(&mut self, bus: &mut B, sectors: u64) -> Result<(), B::Error> {
        let Some(figures) = self.figures.as_mut().filter(|figures| figures.sectors != sectors) else {
            return Ok(());
        };
        figures.sectors = sectors;
        self.shares.iter().for_each(|share| share.set_sectors(sectors));
        let pairs = resized(bus, sectors)?;
        bus.publish(&pairs, |_| false)
    }
}

impl<P: Platform> BackDevice for Vbd<P> {
    type Platform = P;
    type Ports = ();
    const RULES: ClassRules = ClassRules {
        handshake: Handshake::Confirmed,
        // A mounted disk refuses to close, and continues.
        serves_closing: true,
        own_keys: &[PARAMS, DEVICE_PATH],
        ..ClassRules::new(Class::VBD)
    };

    fn offer<B: DeviceBus>(&mut self, bus: &mut B) -> Result<(), B::Error> {
        self.config.features.max_indirect_segments =
            self.config.features.max_indirect_segments.min(INDIRECT_SEGMENTS_MAX);
        bus.publish(&self.config.features.pairs(), of_back_connection)
    }

    fn connect<B: DeviceBus>(
        &mut self,
        p: &P,
        bus: &mut B,
        with: Connect<'_>,
    ) -> Result<(), ConnectError<B::Error>> {
        // The front of an empty CD drive waits until the toolstack names an image.
        if with.begin == Begin::Fresh && !has_medium(bus).map_err(ConnectError::Keys)? {
            return Err(ConnectError::NotYet);
        }
        self.connect_queues(p, bus, with)
    }

    fn connection(&self) -> Connection {
        Connection::of_queues(self.queues.len(), self.shares.len())
    }

    fn drain(&mut self, p: &P, (): &mut ()) -> Drained {
        // All queues use one image: if that hangs, wait for it only once.
        let mut patient = true;
        let drain = |q: &mut BackQueue<P>| {
            let delivered = q.drain(p, patient);
            patient &= q.in_flight() == 0;
            delivered
        };
        Drained { delivered: self.queues.iter_mut().map(drain).sum(), lost: 0 }
    }

    fn disconnect(&mut self, _: &P) {
        // Dropping unmaps and closes the channels; requests still in the disk keep their pages
        self.queues.clear();
        self.shares.clear();
        self.figures = None;
        self.allowed = 0;
        self.lasting = None;
        self.image.close();
    }

    fn changed<B: DeviceBus>(&mut self, _: &P, _: &mut B, _: Changed<'_>) -> Result<(), B::Error> {
        Ok(())
    }

    fn pages(&self) -> PageUse {
        let of_all =
            |count: &dyn Fn(&QueueShare) -> usize| self.shares.iter().map(|share| count(share)).sum();
        let least: usize = of_all(&|share| share.ring_pages);
        let kept = |share: &QueueShare| if share.keeps() { self.config.persistent_pages } else { 0 };
        PageUse {
            needed: least + of_all(&QueueShare::alone),
            least,
            single: 0,
            requested: of_all(&|share| kept(share) + share.requested_alone()),
            allowed: self.allowed,
        }
    }

    fn allow_pages(&mut self, p: &P, PageShare { pages, .. }: PageShare) {
        // Keeping pages mapped saves more than mapping pages for single requests, which can be
        // copied as well.
        let (mut left, mut n) = (pages, self.shares.iter().filter(|share| share.keeps()).count());
        for share in self.shares.iter().filter(|share| share.keeps()) {
            let each = (left / n).min(self.config.persistent_pages);
            share.set_page_limit(each);
            (left, n) = (left - each, n - 1);
        }
        self.allowed = pages - left;
        n = self.shares.len();
        for share in &self.shares {
            let alone = share.requested_alone().min(left / n);
            share.set_alone_limit(alone);
            (left, n) = (left - alone, n - 1);
        }
        self.queues.iter_mut().for_each(|q| q.apply_config(p));
    }
}

/// Announces another length to the front. The state is written again with its old value: a 5 of the
/// toolstack must stay, and Linux's front would take a 4 seen in its own state 5 for a new
/// connection.
fn resized<B: DeviceBus>(bus: &mut B, sectors: u64) -> Result<Pairs, B::Error> {
    let state = match bus.peer_state()? {
        XenbusState::Closing => XenbusState::Closing,
        _ => bus.own_state()?,
    };
    Ok(resized_pairs(sectors, state))
}

/// The error for an image that is not available. A guest that is connected to it waits, because
/// closing the disk would lose it.
fn not_there<E>(begin: Begin, why: String) -> ConnectError<E> {
    match begin {
        Begin::Fresh => ConnectError::Unready(why),
        Begin::Reattach => ConnectError::Busy(why),
    }
}

/// Grant reference of the first page of queue 0's ring, and its event channel: these identify the
/// connection in the record.
fn connection_of(front: &FrontRequest) -> (u32, u32) {
    front.queues.first().and_then(|q| Some((q.ring.first()?.0, q.channel.0))).unwrap_or_default()
}

/// Whether there is an image to open: a CD drive may be empty, until the toolstack names one.
fn has_medium<B: DeviceBus>(bus: &mut B) -> Result<bool, B::Error> {
    Ok(!type_is_cdrom(bus.own_text(DEVICE_TYPE)?.as_ref()) || image_name(bus)?.is_some())
}

/// The image's name from the toolstack or its script. None: there is none.
fn image_name<B: DeviceBus>(bus: &mut B) -> Result<Option<String>, B::Error> {
    let named = |name: Option<String>| name.filter(|name| !name.is_empty());
    match named(bus.own_text(DEVICE_PATH)?) {
        Some(device) => Ok(Some(device)),
        None => Ok(named(bus.own_text(PARAMS)?)),
    }
}

impl<P: Platform> Vbd<P> {
    /// Opens the image, maps the rings, binds the channels, and writes the disk's properties.
    fn connect_queues<B: DeviceBus>(
        &mut self,
        p: &P,
        bus: &mut B,
        Connect { begin, page_limit, kept, .. }: Connect<'_>,
    ) -> Result<(), ConnectError<B::Error>> {
        // A predecessor's offer is valid for its connection only.
        self.offered = match begin {
            Begin::Reattach => BackFeatures::read(&mut OwnKeys(bus)).map_err(ConnectError::Keys)?,
            Begin::Fresh => self.config.features,
        };
        let (front, published) = match begin {
            Begin::Reattach => {
                let own = &mut OwnKeys(bus);
                let accepted = Accepted::read(own).map_err(ConnectError::Keys)?;
                let published = read_figures(own).map_err(ConnectError::Keys)?;
                (FrontRequest::read_again(bus, &self.offered, &accepted), Some(published))
            }
            Begin::Fresh => (FrontRequest::read(p, (self.of, page_limit), bus, &self.offered), None),
        };
        let front = front.map_err(ConnectError::Keys)?;
        let native_sectors = match published {
            // The properties that a connected guest knows stay valid.
            Some(published) => published.units() > 1,
            // Such a front would count in logical sectors while this back counts in 512 bytes, and
            // would get wrong data.
            None => self.config.native_sectors && !flag(bus, LARGE_SECTORS).map_err(ConnectError::Keys)?,
        };
        let mode = bus.own_text(MODE).map_err(ConnectError::Keys)?;
        // A guest that may only read keeps that until its next connect.
        let writable =
            mode_writes(mode.as_deref()) && !published.is_some_and(|published| published.read_only);
        let params = image_name(bus).map_err(ConnectError::Keys)?;
        let is_cd = type_is_cdrom(bus.own_text(DEVICE_TYPE).map_err(ConnectError::Keys)?.as_ref());
        if is_cd && params.is_none() {
            // Another medium is never given to this connection, so waiting for one is useless.
            return Err(ConnectError::Unready(String::from("its medium was taken out while no backend ran")));
        }
        let (guest, is_live) = (self.of, begin == Begin::Reattach);
        let opening = Opening { guest, params, writable, is_live, native_sectors, is_trial: false };
        let mut figures = match self.image.open(&opening) {
            Ok(figures) => figures,
            Err(OpenError::Busy(who)) => return Err(ConnectError::Busy(who)),
            Err(OpenError::Failed(why)) => return Err(not_there(begin, why)),
            Err(OpenError::Lost(why)) => {
                self.note_lost(&front, kept)?;
                return Err(ConnectError::Unready(why));
            }
        };
        figures.read_only |= !writable;
        let name = opening.params.as_deref().unwrap_or_default();
        let same = self.check_image((name, is_cd), &front, begin, &mut *kept);
        let connected = same
            .and_then(|()| self.connect_open(p, bus, (front, published, figures), (begin, page_limit), kept));
        if connected.is_err() {
            self.lasting = None;
            self.image.close();
        }
        connected
    }

    /// Records which image this connection's guest has, before the image is used. A successor must
    /// find the same one, or refuses with an error, also if there is no record. A refused guest
    /// does not get another image by reconnecting, since it may have the first one mounted. A CD
    /// drive does, because that is how its medium is changed.
    fn check_image<E>(
        &mut self,
        (name, is_cd): (&str, bool),
        front: &FrontRequest,
        begin: Begin,
        kept: KeptMemory<'_>,
    ) -> Result<(), ConnectError<E>> {
        let memory = kept("image", KEPT_IMAGE_BYTES).and_then(KeptImage::new);
        // This is checked for new connections, too: the guest may be one that was refused.
        memory.as_ref().map_or(Ok(true), KeptImage::check)?;
        let identity = self.image.identity().unwrap_or_default();
        let now = ImageRecord::new(connection_of(front), name, &identity);
        let was = memory.as_ref().and_then(KeptImage::load).filter(|was| match begin {
            Begin::Reattach => was.connection == now.connection,
            Begin::Fresh => was.refused && !is_cd,
        });
        let is_kept = was.as_ref() == Some(&now);
        let refused = match (begin, was) {
            (_, Some(was)) if was.is_of(&now) => None,
            (_, Some(was)) => Some(was),
            // Without memory for a record the disk is served without one, and no successor can
            // resume it.
            (Begin::Fresh, None) => None,
            (Begin::Reattach, None) => Some(ImageRecord::unknown(now.connection)),
        };
        let keep = |record: &ImageRecord| memory.iter().for_each(|memory| memory.store(record));
        let Some(was) = refused else {
            let failed = begin == Begin::Reattach && memory.as_ref().is_some_and(KeptImage::flush_failed);
            self.flush_failed = Arc::new(AtomicBool::new(failed));
            memory.iter().for_each(|memory| memory.set_flush_failed(failed));
            // A process that dies while it writes the record leaves none, and its successor would
            // refuse.
            if !is_kept {
                keep(&now);
            }
            self.lasting = memory.filter(|_| self.image.ends_with_process()).map(|memory| (memory, now));
            return Ok(());
        };
        let why = match was.unknown {
            true => format!(
                "no record says which image its guest was connected to, and {} ({}) may be another: nothing of it was read or \
                 written for the guest. To give the guest this one, detach and attach the disk",
                now.name, now.identity
            ),
            false => format!(
                "{} is not the image that its guest was connected to, which was {} ({}); this one is {}. Nothing of it was \
                 read or written for the guest. Put that image back; or, to give the guest this one, detach and attach the \
                 disk",
                now.name, was.name, was.identity, now.identity
            ),
        };
        keep(&ImageRecord { refused: true, ..was });
        Err(ConnectError::Unready(why))
    }

    /// Records that this connection's image is lost. Its guest, which may have the image mounted,
    /// gets no other image by reconnecting, like a refused guest.
    fn note_lost<E>(&self, front: &FrontRequest, kept: KeptMemory<'_>) -> Result<(), ConnectError<E>> {
        let Some(memory) = kept("image", KEPT_IMAGE_BYTES).and_then(KeptImage::new) else { return Ok(()) };
        memory.check()?;
        let connection = connection_of(front);
        let was = memory.load().filter(|was| was.connection == connection);
        let was = was.unwrap_or_else(|| ImageRecord::unknown(connection));
        memory.store(&ImageRecord { refused: true, ..was });
        Ok(())
    }

    /// The part of the connect after the image is open. `published` is what a predecessor wrote for
    /// the guest.
    fn connect_open<B: DeviceBus>(
        &mut self,
        p: &P,
        bus: &mut B,
        (front, published, mut figures): (FrontRequest, Option<DiskFigures>, DiskFigures),
        (begin, page_limit): (Begin, usize),
        kept: KeptMemory<'_>,
    ) -> Result<(), ConnectError<B::Error>> {
        figures.cdrom |= type_is_cdrom(bus.text(DEVICE_TYPE).map_err(ConnectError::Keys)?.as_ref());
        if !discards_enabled(&mut OwnKeys(bus)).map_err(ConnectError::Keys)? {
            figures.discard = None;
        }
        if let Some(published) = published {
            if published.units() != figures.units() || published.sectors > figures.sectors {
                return Err(ConnectError::Lost(String::from(
                    "the image is shorter than the guest knows, or has sectors of another size",
                )));
            }
            // A guest that knows of no cache never flushes: its writes were on the disk when they
            // were answered.
            if figures.flush && !published.flush || figures.read_only && !published.read_only {
                return Err(ConnectError::Lost(String::from(
                    "the image has a cache now, or may not be written to now, and the guest does not know that",
                )));
            }
        }
        let n = front.queues.len();
        let rings: usize = front.queues.iter().map(|keys| keys.ring.len()).sum();
        let rules = Rules {
            figures,
            barrier: offers_barrier(&figures, self.offered.barrier),
            max_indirect: self.offered.max_indirect_segments.min(INDIRECT_SEGMENTS_MAX) as u16,
        };
        let path = if front.persistent { PathName::Persistent } else { self.config.fallback };
        if rings > page_limit {
            return Err(ConnectError::TooManyPages(TooManyPages { asked: rings, left: page_limit }));
        }
        let budget = self.config.parts_in_flight.max(n * rules.most_parts()) / n;
        let mut queues = Vec::with_capacity(n);
        for (i, keys) in front.queues.iter().enumerate() {
            let disk = self.image.queue().map_err(|e| not_there(begin, format!("{e}")))?;
            let path = AnyPath::new(path, self.config.persistent_pages)?;
            let (ring_key, ring_pages) = (keys.ring_key((i, n), 0), keys.ring.len());
            let record = kept("image", KEPT_IMAGE_BYTES).and_then(KeptImage::new);
            let flush_fault = FlushFault::new(Arc::clone(&self.flush_failed), record);
            let parts = QueueParts { ring_key, disk, path, rules, budget, ring_pages, flush_fault };
            queues.push(self.connect_queue(p, (i, n), keys, (front.abi, begin), parts, &mut *kept)?);
        }
        let pairs: Option<Pairs> = match published {
            None => Some([figures_pairs(&figures, rules.barrier), front.accepted_pairs()].concat()),
            // The image grew while no process was there to announce it.
            Some(published) if published.sectors != figures.sectors => {
                Some(resized(bus, figures.sectors).map_err(ConnectError::Keys)?)
            }
            Some(_) => None,
        };
        if let Some(pairs) = pairs {
            bus.publish(&pairs, |_| false).map_err(ConnectError::Keys)?;
        }
        self.shares = queues.iter().map(|q| Arc::clone(q.share())).collect();
        self.queues = queues;
        self.figures = Some(figures);
        self.allow_pages(p, PageShare { pages: page_limit - rings, lasting: usize::MAX });
        Ok(())
    }

    fn connect_queue<E>(
        &self,
        p: &P,
        (i, n): (usize, usize),
        keys: &QueueKeys,
        (abi, begin): (Abi, Begin),
        parts: QueueParts<P>,
        kept: KeptMemory<'_>,
    ) -> Result<BackQueue<P>, ConnectError<E>> {
        let (of, refs) = (self.of, &keys.ring[..]);
        let map = p.peer().map(of, refs, Access::ReadWrite).map_err(|error| {
            let k = error.index.filter(|&k| k < refs.len()).unwrap_or(0);
            let key = keys.ring_key((i, n), k);
            ConnectError::Map { key: KeyName::of(key), of, gref: refs[k], error }
        })?;
        let port = keys.channel;
        let chan = p.events().bind(of, port).map_err(|error| {
            let key = queue_prefix(i, n) + "event-channel";
            ConnectError::Bind { key, of, port, error }
        })?;
        let memory = kept(&format!("{i}/journal"), JOURNAL_BYTES).and_then(RedoWords::new);
        if let (Begin::Reattach, Some(words)) = (begin, &memory) {
            Journal::check(words)?;
        }
        // The presence of memory proves nothing: it may be new.
        let mut has_journal = false;
        let journal = |size| {
            let journal = Journal::over(memory?, size);
            has_journal = journal.is_started();
            // The ring of a new connection starts again: an old ring's last batch must not be
            // replayed.
            if begin == Begin::Fresh {
                journal.clear();
            }
            Some(journal)
        };
        let (mut ring, notify) = JournaledRing::attach(abi, map, journal)?;
        // Answers overwrite requests that are not answered, so without the journal it is unknown
        // which requests are left.
        if begin == Begin::Reattach && !has_journal && ring.available(1)? > 0 {
            ring.forget();
            return Err(ConnectError::Lost(String::from(
                "requests are on the ring, and the journal that says which were answered is gone",
            )));
        }
        // A predecessor may have died between a batch of answers and its notification.
        if notify.wanted() || begin == Begin::Reattach && ring.unnotified().wanted() {
            p.events().notify(&chan);
        }
        Ok(BackQueue::new(of, ring, chan, parts))
    }

    /// The disk's properties that its guest knows. None: the disk is not connected.
    pub fn figures(&self) -> Option<&DiskFigures> {
        self.figures.as_ref()
    }

    /// Largest number of pages that the disk maps: those that it [needs](PageUse::needed), and
    /// those that it keeps mapped.
    pub fn mapped_pages(&self) -> usize {
        self.pages().needed + self.shares.iter().map(|share| share.kept_pages()).sum::<usize>()
    }

    /// Time at which the oldest unanswered request was taken, by the platform's clock. None: there
    /// is none.
    pub fn oldest_ns(&self) -> Option<u64> {
        self.shares.iter().filter_map(|share| share.oldest_ns()).min()
    }

    /// Whether a flush of this connection has failed. Then it is unknown whether earlier writes are
    /// on the disk, and each flush is answered with an error.
    pub fn flush_failed(&self) -> bool {
        self.flush_failed.load(Ordering::Relaxed)
    }

    /// The state shared with the disk's queues, wherever they run.
    pub fn shares(&self) -> &[Arc<QueueShare>] {
        &self.shares
    }

    /// Answers completed requests of the queues that are not with workers. Returns how many
    /// requests are still in the disk.
    pub fn under_way(&mut self, p: &P) -> usize {
        self.queues.iter_mut().map(|queue| queue.under_way(p)).sum()
    }

    /// The queues that are not with workers.
    pub fn queues(&mut self) -> &mut [BackQueue<P>] {
        &mut self.queues
    }

    /// Returns the disk's queues, to be given to workers, in their order. Until they are
    /// [back](Self::take_back) the disk can neither close nor detach.
    pub fn hand_out_queues(&mut self) -> Vec<BackQueue<P>> {
        core::mem::take(&mut self.queues)
    }

    /// Takes all of the disk's queues back, in order.
    pub fn take_back(&mut self, queues: Vec<BackQueue<P>>) {
        self.queues = queues;
    }
}
