//! The control state of a vif: what its guest set by control requests and multicast extra infos,
//! and how that outlives the process (docs/protocol 1.1, R4).
//!
//! ```text
//!   control ring --ask--> Control { multicast, hash } --commit--> ControlPage      then the ring is answered
//!             '--> GrefRequests --tables--> GrefPage, which counts as the control page says
//!   TX extras ---------->        |
//!                                '--> GuestSettings, a copy for each queue's RX: which frames, which hash, which queue
//! ```
//! The order is: the state changes; the page has it; the guest is notified. The page also has the
//! last answer of the control ring, so that request and answer are one step: a successor finds
//! either neither or both. MCAST_ADD and DEL are answered on TX rings and may be executed twice,
//! which changes nothing (see [`MulticastList`]).
//!
//! Without a page, or with a damaged one, the guest gets all multicast frames and no hashes. A page
//! of an unknown version is [refused](Control::check) before.

use super::control_page::{ControlPage, KeptGrefs};
use super::credit::Credit;
use super::guest_settings::GuestSettings;
use super::hash::{HashSettings, HashSteering, MAPPING_MAX};
use super::multicast::MulticastList;
use crate::error::PlatformError;
use crate::net::batch::tx::MulticastAsk;
use crate::net::path::GREF_QUEUES_MAX as QUEUES_MAX;
use crate::net::toeplitz::KEY_MAX;
use crate::platform::{CopyOp, LocalBytes, PeerMem, Platform};
use crate::port::Steering;
use crate::record_version::UnknownRecord;
use crate::ring::crash::{self, Point};
use crate::units::{DomId, GrantRef};
use crate::wire::grant::GrantStatus;
use crate::wire::netif_ctrl::{CtrlRequest, CtrlResponse, CtrlStatus, CtrlType};
use alloc::sync::Arc;
use core::mem;

/// The settings of a guest, where they are kept, and its credit.
#[derive(Default)]
pub struct Control {
    /// The multicast frames that the guest wants.
    pub multicast: MulticastList,
    /// How the guest wants frames hashed and distributed.
    hash: HashSettings,
    /// The kept state of gref mappings. The queues' tables themselves are not here.
    pub grefs: KeptGrefs,
    /// The control ring's index after its last answer, and that answer.
    last: (u32, CtrlResponse),
    /// `feature-multicast-control` was offered; otherwise there is no list.
    offers_multicast: bool,
    /// Counts changes of the hash settings, which each queue must copy and each port follow.
    steered: u32,
    /// The steering of each port, made by the thread that changed the settings. None: ports choose
    /// the queue.
    steering: Option<Arc<dyn Steering>>,
    /// Number of queues of the vif.
    queues: usize,
    page: Option<ControlPage>,
    /// The credit by the toolstack's `rate`, if there is one. The credit is not kept for a
    /// successor.
    pub credit: Option<Credit>,
}

impl Control {
    /// Sets where the state is kept.
    pub fn keep(&mut self, page: ControlPage) {
        self.page = Some(page);
    }

    /// Sets whether the back offered multicast filtering.
    pub fn offer_multicast(&mut self, offered: bool) {
        self.offers_multicast = offered;
    }

    /// Sets the number of queues of the vif, before the first settings of a connection.
    pub fn set_queues(&mut self, queues: usize) {
        self.queues = queues;
    }

    /// Whether ports have a choice of queues.
    pub(super) fn may_steer(&self) -> bool {
        self.queues > 1
    }

    /// How the guest wants frames hashed and distributed.
    pub fn hash(&self) -> &HashSettings {
        &self.hash
    }

    /// The hash settings, to be changed without a request: queues copy them again, and ports go on
    /// as they were steered.
    pub fn hash_mut(&mut self) -> &mut HashSettings {
        self.steered = self.steered.wrapping_add(1);
        &mut self.hash
    }

    /// The hash settings have changed: each port must follow. `with` is memory for a steering,
    /// which is only taken if there is one now. Returns the steering before.
    fn steer(&mut self, with: &mut Option<Arc<HashSteering>>) -> Option<Arc<dyn Steering>> {
        self.steered = self.steered.wrapping_add(1);
        let on = self.hash.is_on() && self.may_steer();
        let steering = with.take_if(|_| on).map(|mut steering| {
            if let Some(HashSteering { settings, queues }) = Arc::get_mut(&mut steering) {
                settings.copy_from(&self.hash);
                *queues = self.queues;
            }
            steering as Arc<dyn Steering>
        });
        mem::replace(&mut self.steering, steering)
    }

    /// The steering of each port, and how often it was changed.
    pub(super) fn steering(&self) -> (u32, Option<Arc<dyn Steering>>) {
        (self.steered, self.steering.clone())
    }

    /// Starts a connection whose guest has set nothing, or whose settings are lost; `multicast` is
    /// the list for either case. `rsp_prod` is the control ring's. The content of the page is
    /// overwritten.
    #[inline(never)]
    pub fn begin(&mut self, rsp_prod: u32, multicast: MulticastList) -> Result<(), PlatformError> {
        self.hash.clear();
        self.hash.make_room()?;
        // Otherwise a former connection's copy could be the newer one.
        if let Some(page) = &mut self.page {
            page.clear();
        }
        self.multicast = multicast;
        self.grefs.versions = [0; QUEUES_MAX];
        self.grefs.make_room()?;
        self.last = (rsp_prod, CtrlResponse::default());
        self.steer(&mut None);
        self.save();
        Ok(())
    }

    /// Forgets what was kept, which is of a time before the last back.
    pub fn forget(&mut self) {
        if let Some(page) = &mut self.page {
            page.clear();
        }
    }

    /// Checks that what a predecessor kept can be read.
    ///
    /// # Errors
    ///
    /// The kept state cannot be read: the connection must not be resumed.
    pub fn check(&self) -> Result<(), UnknownRecord> {
        self.page.as_ref().map_or(Ok(()), ControlPage::check)
    }

    /// Resumes a predecessor's state. Returns the control ring's index after its last answer, and
    /// that answer. None: nothing was kept; call [`begin`](Self::begin) instead.
    #[inline(never)]
    pub fn resume(&mut self) -> Option<(u32, CtrlResponse)> {
        let mut kept = self.page.as_mut().and_then(ControlPage::load)?;
        mem::swap(&mut self.multicast, &mut kept.multicast);
        mem::swap(&mut self.hash, &mut kept.hash);
        mem::swap(&mut self.grefs, &mut kept.grefs);
        self.last = kept.last;
        // Without memory for it ports choose the queue, as without the guest's settings.
        let steering = self.may_steer().then(HashSteering::new).and_then(Result::ok);
        self.steer(&mut steering.map(Arc::new));
        Some(self.last)
    }

    fn save(&mut self) {
        if let Some(page) = &mut self.page {
            page.store(&self.multicast, &self.hash, self.last, &self.grefs);
        }
    }

    /// Copies the part of the state that RX needs, where `to` differs: the hash settings are long.
    /// Returns the steering that `to` had before, to be freed without the lock.
    pub(super) fn copy_settings(&self, to: &mut GuestSettings) -> Option<Arc<dyn Steering>> {
        to.multicast.copy_from(&self.multicast);
        if to.steered == self.steered {
            return None;
        }
        to.hash.copy_from(&self.hash);
        to.steered = self.steered;
        mem::replace(&mut to.steering, self.steering.clone())
    }

    /// Executes the MCAST extras of a batch; calls `refused` for each that fails. The result is
    /// kept when this returns.
    #[cold]
    pub fn multicast(&mut self, asks: impl Iterator<Item = MulticastAsk>, mut refused: impl FnMut(usize)) {
        for (i, ask) in asks.enumerate() {
            if !self.offers_multicast || !self.multicast.apply(ask) {
                refused(i);
            }
        }
        crash::here(Point::BeforeRecord);
        self.save();
    }

    /// Executes a control request. Returns the answer, which is kept with the state as the one
    /// before `rsp_prod`. The caller must publish it next.
    pub(super) fn answer(&mut self, asked: &mut Asked, rsp_prod: u32) -> CtrlResponse {
        let (status, data) = self.ask(asked);
        self.answer_with(CtrlResponse::to(&asked.request, status, data), rsp_prod)
    }

    /// Keeps an answer that was computed elsewhere, with the state and [`grefs`](Self::grefs), as
    /// the one before `rsp_prod`. The caller must publish it next.
    pub fn answer_with(&mut self, response: CtrlResponse, rsp_prod: u32) -> CtrlResponse {
        self.last = (rsp_prod, response);
        crash::here(Point::BeforeRecord);
        self.save();
        response
    }

    fn ask(&mut self, asked: &mut Asked) -> (CtrlStatus, u32) {
        use CtrlType as T;
        let [a, _, first] = asked.request.data;
        let status = match (CtrlType::from_raw(asked.request.msg_type), &asked.page) {
            (Some(T::GetHashFlags), _) => return self.hash.possible_flags(),
            (Some(T::GetHashMappingSize), _) => return (CtrlStatus::Success, MAPPING_MAX as u32),
            (_, Err(status)) => return (*status, 0),
            (Some(T::SetHashAlgorithm), _) => self.hash.set_algorithm(a),
            (Some(T::SetHashFlags), _) => self.hash.set_flags(a),
            (Some(T::SetHashKey), Ok(key)) => self.hash.set_key(key.bytes()),
            (Some(T::SetHashMappingSize), _) => self.hash.set_mapping_size(a),
            (Some(T::SetHashMapping), Ok(table)) => {
                let mut entries = [0; MAPPING_MAX];
                let words = table.bytes().as_chunks().0;
                for (entry, word) in entries.iter_mut().zip(words) {
                    *entry = u32::from_le_bytes(*word);
                }
                let entries = entries.get(..words.len()).unwrap_or_default();
                self.hash.set_mapping(entries, first, self.queues)
            }
            _ => return (CtrlStatus::NotSupported, 0),
        };
        if status == CtrlStatus::Success {
            asked.replaced = self.steer(&mut asked.steering);
        }
        (status, 0)
    }
}

/// A control request with all that its execution needs, so that none of it is read or allocated
/// while the state is locked.
pub struct Asked {
    request: CtrlRequest,
    /// A key's or a table's bytes, for a request that changes the hash settings. An error: the
    /// status of a request that does not.
    page: Result<PageBytes, CtrlStatus>,
    /// Memory for a steering, if the request changes the hash settings of a vif with queues to
    /// choose.
    steering: Option<Arc<HashSteering>>,
    /// The steering before, which is freed after the lock is.
    replaced: Option<Arc<dyn Steering>>,
}

/// The first bytes of a page of the guest: a key, or a table.
struct PageBytes {
    bytes: [u8; MAPPING_MAX * 4],
    len: usize,
}

impl PageBytes {
    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl Asked {
    /// Reads what a request of domain `of` names. `may_steer`: the vif has queues to choose.
    /// `check_mapping` says whether a table of so many entries, from that one on, can be written:
    /// before the page is read.
    #[inline(never)]
    pub(super) fn of_request<P: Platform>(
        p: &P,
        of: DomId,
        may_steer: bool,
        request: &CtrlRequest,
        check_mapping: impl FnOnce(u32, u32) -> CtrlStatus,
    ) -> Self {
        use CtrlType as T;
        let [gref, n, first] = request.data;
        let len = match CtrlType::from_raw(request.msg_type) {
            Some(T::SetHashKey) if n as usize > KEY_MAX => Err(CtrlStatus::BufferOverflow),
            Some(T::SetHashKey) => Ok(n as usize),
            Some(T::SetHashMapping) => match check_mapping(n, first) {
                CtrlStatus::Success => Ok(n as usize * 4),
                status => Err(status),
            },
            Some(T::SetHashAlgorithm | T::SetHashFlags | T::SetHashMappingSize) => Ok(0),
            // Types 8 to 10 only get here if no queue has a table.
            _ => Err(CtrlStatus::NotSupported),
        };
        let page = len.and_then(|len| {
            let mut page = PageBytes { bytes: [0; MAPPING_MAX * 4], len };
            let bytes = page.bytes.get_mut(..len).ok_or(CtrlStatus::BufferOverflow)?;
            if read_page(p, of, gref, bytes) { Ok(page) } else { Err(CtrlStatus::InvalidParameter) }
        });
        let steering = (may_steer && page.is_ok()).then(HashSteering::new).transpose();
        let page = if steering.is_ok() { page } else { Err(CtrlStatus::BufferOverflow) };
        let steering = steering.ok().flatten().map(Arc::new);
        Self { request: *request, page, steering, replaced: None }
    }
}

/// Copies the first bytes of a page of the guest, once. False: the page cannot be read.
fn read_page<P: Platform>(p: &P, of: DomId, gref: u32, to: &mut [u8]) -> bool {
    if to.is_empty() {
        return true;
    }
    let len = to.len() as u16; // a key or a table: less than a page
    let op = CopyOp { gref: GrantRef(gref), offset: 0, len, at: 0, status: GrantStatus::OKAY };
    let mut ops = [op];
    gref != GrantRef::NONE.0
        && p.peer().copy(of, LocalBytes::FromPeer(to), &mut ops).is_ok()
        && ops[0].status == GrantStatus::OKAY
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that sets the hash types, with or without memory for a steering.
    fn set_flags(flags: u32, with_memory: bool) -> Asked {
        let request = CtrlRequest { id: 1, msg_type: CtrlType::SetHashFlags.raw(), data: [flags, 0, 0] };
        let page = Ok(PageBytes { bytes: [0; MAPPING_MAX * 4], len: 0 });
        Asked { request, page, steering: with_memory.then(Arc::default), replaced: None }
    }

    fn hashing(queues: usize) -> Control {
        let mut control = Control::default();
        control.set_queues(queues);
        assert_eq!(control.begin(0, MulticastList::default()), Ok(()));
        assert_eq!(control.hash_mut().set_algorithm(1), CtrlStatus::Success);
        control
    }

    #[test]
    fn a_steering_is_freed_by_who_asked_or_copied_and_not_under_the_lock() {
        let mut control = hashing(2);
        let mut settings = GuestSettings::default();
        let mut last = None;
        for flags in [1, 3, 0] {
            let mut asked = set_flags(flags, true);
            control.answer(&mut asked, 1);
            let steering = control.steering.clone();
            let addresses = |of: &Option<Arc<dyn Steering>>| of.as_ref().map(|s| Arc::as_ptr(s).addr());
            assert_eq!(addresses(&asked.replaced), addresses(&last), "types {flags}");
            assert_eq!(addresses(&control.copy_settings(&mut settings)), addresses(&last));
            assert_eq!((steering.is_some(), asked.steering.is_some()), (flags != 0, flags == 0));
            last = steering;
        }
    }

    #[test]
    fn hash_settings_are_copied_where_they_have_changed() {
        let mut control = hashing(1);
        let mut settings = GuestSettings::default();
        control.answer(&mut set_flags(1, false), 1);
        assert!(control.copy_settings(&mut settings).is_none() && settings.hash.is_on());
        assert!(settings.steering.is_none(), "one queue is no choice");
        // What the copy alone has stays as long as no request changes the settings.
        assert_eq!(settings.hash.set_flags(0xF), CtrlStatus::Success);
        control.multicast.request(true);
        control.copy_settings(&mut settings);
        control.answer(&mut set_flags(0x10, false), 2); // refused
        control.copy_settings(&mut settings);
        assert_eq!((settings.hash.flags(), settings.multicast.filters()), (0xF, true));
        control.answer(&mut set_flags(3, false), 3);
        control.copy_settings(&mut settings);
        assert_eq!(settings.hash, control.hash);
    }
}
