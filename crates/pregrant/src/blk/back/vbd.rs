//! One disk at the back: what it is beside the handshake of any device ([`Back`]).
//!
//! ```text
//!   offer       what this back takes                                          blk/features.rs
//!   connect     image opened, and written down (kept_image) --> the front's keys --> rings, channels --> queues live --> figures written, and then state 4
//!   resize      `sectors` and the state once more: the front checks        also by a successor whose image grew meanwhile
//!   disconnect  nothing stays mapped or bound, but what the disk still works on: its closer waits for that (under_way)
//! ```
//! Connected is said only after the image is open: a disk that cannot be had is a device that
//! closes with a line that says why.
//!
//! What a front may do: write any keys, garble its rings, vanish. Rings that are wrong close the
//! device; what passes the bound of its guest's pages (XSA-300) connects nothing.

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

/// The offer of a back to disks, and how it serves them.
#[derive(Clone, Copy, Debug)]
pub struct VbdConfig {
    /// The features that are advertised.
    pub features: BackFeatures,
    /// How the bytes of a front that does not persist travel: `copy` or `map`.
    pub fallback: PathName,
    /// How many pages of each queue may stay mapped once they were seen, where the front persists.
    pub persistent_pages: usize,
    /// Parts of pages that all requests in flight together may have, over all queues: copied, or
    /// mapped within the guest's share.
    pub parts_in_flight: usize,
    /// A guest sees the image's own logical sectors, where they are longer than 512
    /// bytes.
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

/// The result for an image that was [tried](Back::try_image).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Tried {
    /// It is there, and what is strange about it.
    Opened {
        /// In words.
        strange: Option<String>,
    },
    /// Somebody has it who may let go: who, in words.
    Busy(String),
    /// It cannot be had: why, and what to do.
    Failed(String),
}

/// One disk of domain `of`, with its handshake.
pub type BackVbd<P> = Back<Vbd<P>>;

/// A disk, beside its handshake.
pub struct Vbd<P: Platform> {
    of: DomId,
    config: VbdConfig,
    /// The features that this connection's back, we or a predecessor, advertised.
    offered: BackFeatures,
    image: Box<dyn Image>,
    /// As its guest knows it; None: it is not connected.
    figures: Option<DiskFigures>,
    /// Its queues; none while they are [handed out](Vbd::hand_out_queues).
    queues: Vec<BackQueue<P>>,
    /// State shared with each queue, wherever it runs; none while it is not connected.
    shares: Vec<Arc<QueueShare>>,
    /// Pages that all of its queues may keep since they saw them.
    allowed: usize,
    /// Whether a flush of this connection has failed.
    flush_failed: Arc<AtomicBool>,
    /// The record of an image that ends with this process, while it is connected.
    lasting: Option<(KeptImage, ImageRecord)>,
}

impl<P: Platform> Back<Vbd<P>> {
    /// A disk that the toolstack created; nothing is written yet.
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

    /// Opens its image, as its front's connect will, and lets go of it: before its front comes.
    /// None: it is connected, or names none.
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

    /// Before it ends for good: where its image ends with this process, its guest gets no other in
    /// its place, though it may connect again. True: the record says so, and is to stay.
    pub fn give_up_image(&mut self) -> bool {
        let Some((memory, record)) = self.lasting.take() else { return false };
        memory.store(&ImageRecord { refused: true, ..record });
        true
    }

    /// Checks how long its image is now, and [resizes](Self::resize) it. True: it had another
    /// length.
    pub fn check_length<B: DeviceBus>(&mut self, bus: &mut B) -> Result<bool, B::Error> {
        let Some(published) = self.figures.as_ref().map(|figures| figures.sectors) else { return Ok(false) };
        match self.image.sectors() {
            Some(sectors) if sectors != published => self.resize(bus, sectors).map(|()| true),
            _ => Ok(false),
        }
    }

    /// Its image has another length now: tells the queues, and the guest. A disk that is not
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
        // A disk that is mounted refuses to close, and goes on.
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
        match (self.queues.len(), self.shares.len()) {
            (_, 0) => Connection::None,
            (here, all) if here < all => Connection::HandedOut,
            _ => Connection::Here,
        }
    }

    fn drain(&mut self, p: &P, (): &mut ()) -> Drained {
        // One image is behind all of them: where it hangs that is waited for once.
        let mut patient = true;
        let drain = |q: &mut BackQueue<P>| {
            let delivered = q.drain(p, patient);
            patient &= q.in_flight() == 0;
            delivered
        };
        Drained { delivered: self.queues.iter_mut().map(drain).sum(), lost: 0 }
    }

    fn disconnect(&mut self, _: &P) {
        // maps are unmapped and channels closed on drop; what the disk still works on keeps its
        // pages
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
        // Pages that stay mapped save more than pages mapped for one request, which can be copied
        // as well.
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

/// Notifies a front of another length. The state is written once more, as it is: the toolstack's 5
/// stays, and Linux's front would take a 4 that it sees at its own 5 for a new connection.
fn resized<B: DeviceBus>(bus: &mut B, sectors: u64) -> Result<Pairs, B::Error> {
    let state = match bus.peer_state()? {
        XenbusState::Closing => XenbusState::Closing,
        _ => bus.own_state()?,
    };
    Ok(resized_pairs(sectors, state))
}

/// The image cannot be had. A guest that is connected to it waits, for it would lose a disk that
/// closes.
fn not_there<E>(begin: Begin, why: String) -> ConnectError<E> {
    match begin {
        Begin::Fresh => ConnectError::Unready(why),
        Begin::Reattach => ConnectError::Busy(why),
    }
}

/// First page of queue 0's ring, and its event channel: what a record says of a connection.
fn connection_of(front: &FrontRequest) -> (u32, u32) {
    front.queues.first().and_then(|q| Some((q.ring.first()?.0, q.channel.0))).unwrap_or_default()
}

/// Whether there is an image to open: a CD drive may be empty, until the toolstack names one.
fn has_medium<B: DeviceBus>(bus: &mut B) -> Result<bool, B::Error> {
    Ok(!type_is_cdrom(bus.own_text(DEVICE_TYPE)?.as_ref()) || image_name(bus)?.is_some())
}

/// The image's name by the toolstack or its script; None: it names none.
fn image_name<B: DeviceBus>(bus: &mut B) -> Result<Option<String>, B::Error> {
    let named = |name: Option<String>| name.filter(|name| !name.is_empty());
    match named(bus.own_text(DEVICE_PATH)?) {
        Some(device) => Ok(Some(device)),
        None => Ok(named(bus.own_text(PARAMS)?)),
    }
}

impl<P: Platform> Vbd<P> {
    /// Opens the image, maps rings, binds channels, writes the figures.
    fn connect_queues<B: DeviceBus>(
        &mut self,
        p: &P,
        bus: &mut B,
        Connect { begin, page_limit, kept, .. }: Connect<'_>,
    ) -> Result<(), ConnectError<B::Error>> {
        // A predecessor's offer holds for its connection, and for no other.
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
            // The values that a guest knows stay valid.
            Some(published) => published.units() > 1,
            // Such a front would count in them where this back counts in 512 bytes, and get other
            // bytes than it asks for.
            None => self.config.native_sectors && !flag(bus, LARGE_SECTORS).map_err(ConnectError::Keys)?,
        };
        let mode = bus.own_text(MODE).map_err(ConnectError::Keys)?;
        // A guest that may only read does so until its next connect.
        let writable =
            mode_writes(mode.as_deref()) && !published.is_some_and(|published| published.read_only);
        let params = image_name(bus).map_err(ConnectError::Keys)?;
        let is_cd = type_is_cdrom(bus.own_text(DEVICE_TYPE).map_err(ConnectError::Keys)?.as_ref());
        if is_cd && params.is_none() {
            // Another medium is not given to this connection, so there is nothing that it could
            // wait for.
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

    /// Writes down which image this connection's guest has, before anything is done there. A
    /// successor finds the same one, or refuses, in words, also where no record says which it was.
    /// A refused guest does not get another image by connecting again: it may have the first one
    /// mounted. A CD drive does, for that is how its medium is changed.
    fn check_image<E>(
        &mut self,
        (name, is_cd): (&str, bool),
        front: &FrontRequest,
        begin: Begin,
        kept: KeptMemory<'_>,
    ) -> Result<(), ConnectError<E>> {
        let memory = kept("image", KEPT_IMAGE_BYTES).and_then(KeptImage::new);
        // Also for a new connection: its guest may be one that was refused.
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
            // Served without a record where there is no memory for one: no successor takes it up.
            (Begin::Fresh, None) => None,
            (Begin::Reattach, None) => Some(ImageRecord::unknown(now.connection)),
        };
        let keep = |record: &ImageRecord| memory.iter().for_each(|memory| memory.store(record));
        let Some(was) = refused else {
            let failed = begin == Begin::Reattach && memory.as_ref().is_some_and(KeptImage::flush_failed);
            self.flush_failed = Arc::new(AtomicBool::new(failed));
            memory.iter().for_each(|memory| memory.set_flush_failed(failed));
            // Who dies while it writes the record leaves none, and the next one would refuse.
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

    /// The image of this connection's guest is gone: as one that is refused, which may have it
    /// mounted, it gets no other by connecting again.
    fn note_lost<E>(&self, front: &FrontRequest, kept: KeptMemory<'_>) -> Result<(), ConnectError<E>> {
        let Some(memory) = kept("image", KEPT_IMAGE_BYTES).and_then(KeptImage::new) else { return Ok(()) };
        memory.check()?;
        let connection = connection_of(front);
        let was = memory.load().filter(|was| was.connection == connection);
        let was = was.unwrap_or_else(|| ImageRecord::unknown(connection));
        memory.store(&ImageRecord { refused: true, ..was });
        Ok(())
    }

    /// The same, once the image is open. `published` is what a predecessor's guest knows of it.
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
                    "the image is shorter than its guest knows, or has other sectors",
                )));
            }
            // A guest that knows of no cache never flushes one: its writes were on the disk
            // when they were answered.
            if figures.flush && !published.flush || figures.read_only && !published.read_only {
                return Err(ConnectError::Lost(String::from(
                    "the image has a cache, or may not be written to, and its guest does not know it",
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
            let path = AnyPath::new(path, self.config.persistent_pages);
            let (ring_key, ring_pages) = (keys.ring_key((i, n), 0), keys.ring.len());
            let record = kept("image", KEPT_IMAGE_BYTES).and_then(KeptImage::new);
            let flush_fault = FlushFault::new(Arc::clone(&self.flush_failed), record);
            let parts = QueueParts { ring_key, disk, path, rules, budget, ring_pages, flush_fault };
            queues.push(self.connect_queue(p, (i, n), keys, (front.abi, begin), parts, &mut *kept)?);
        }
        let pairs: Option<Pairs> = match published {
            None => Some([figures_pairs(&figures, rules.barrier), front.accepted_pairs()].concat()),
            // It grew while no one was there to say so.
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
            ConnectError::Map { key, of, gref: refs[k], error }
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
        // Memory alone says nothing: it may be new.
        let mut has_journal = false;
        let journal = |size| {
            let journal = Journal::over(memory?, size);
            has_journal = journal.is_started();
            // A new connection's ring starts again: what an old one's last batch left must not be
            // replayed.
            if begin == Begin::Fresh {
                journal.clear();
            }
            Some(journal)
        };
        let (mut ring, notify) = JournaledRing::attach(abi, map, journal)?;
        // Answers overlay requests that are not answered: without the journal no one knows which
        // are left.
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

    /// The disk, as its guest knows it; None: it is not connected.
    pub fn figures(&self) -> Option<&DiskFigures> {
        self.figures.as_ref()
    }

    /// Pages that it has mapped at most: those that it [needs](PageUse::needed), and those that it
    /// keeps since it saw them.
    pub fn mapped_pages(&self) -> usize {
        self.pages().needed + self.shares.iter().map(|share| share.kept_pages()).sum::<usize>()
    }

    /// When the oldest of its unanswered requests was taken, by the platform's clock. None: it has
    /// none.
    pub fn oldest_ns(&self) -> Option<u64> {
        self.shares.iter().filter_map(|share| share.oldest_ns()).min()
    }

    /// Whether a flush of this connection has failed: of what was written and answered before, no
    /// one knows whether it is on the disk, and each flush is answered with an error.
    pub fn flush_failed(&self) -> bool {
        self.flush_failed.load(Ordering::Relaxed)
    }

    /// State shared with its queues, wherever they run.
    pub fn shares(&self) -> &[Arc<QueueShare>] {
        &self.shares
    }

    /// Has its queues that are here answer what has come back. Returns how many requests its image
    /// still works on.
    pub fn under_way(&mut self, p: &P) -> usize {
        self.queues.iter_mut().map(|queue| queue.under_way(p)).sum()
    }

    /// Its queues that are here.
    pub fn queues(&mut self) -> &mut [BackQueue<P>] {
        &mut self.queues
    }

    /// Gives its queues to their workers, in their order. Until they are [back](Self::take_back) it
    /// neither closes nor detaches.
    pub fn hand_out_queues(&mut self) -> Vec<BackQueue<P>> {
        core::mem::take(&mut self.queues)
    }

    /// Takes all of its queues back, in their order.
    pub fn take_back(&mut self, queues: Vec<BackQueue<P>>) {
        self.queues = queues;
    }
}
