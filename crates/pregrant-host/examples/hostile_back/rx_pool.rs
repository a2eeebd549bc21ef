//! A back that is hostile to RX pages which are added and removed while frames are read in place
//! (docs/protocol 2.11).
//!
//! ```text
//!   a long frame --> front: no page is spare --ADD--> as the case says       memory is short --DEL--> as it says
//! ```
//! Pages that are there from the beginning are asked for by more at once: that is answered
//! honestly. The front has to give spare pages up often.

use super::{Control, Map, PATIENCE, Result, Vif, at, map};
use pregrant::platform::{Access, Events, PeerMem, Platform};
use pregrant::ring::{RingMem, Word};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif::{RXF_MORE_DATA, RxResponse};
use pregrant::wire::netif_ctrl::{CtrlRequest, CtrlResponse, CtrlStatus, CtrlType, GREF_LIST_MAX, GrefEntry};
use pregrant::xenbus::XenbusState;
use pregrant::xenstore::Transport;
use std::time::Duration;

/// Number of pages that the back claims its table has room for.
const ROOM: u32 = 768;
/// Largest number of pages in one request of the pool.
const POOL_PART: usize = 64;
/// Bytes of a page that left.
const MARK: [u8; 64] = [0xa5; 64];
/// Long frames at a time.
const FRAMES: usize = 6;
/// The parts of such a frame: a packet's are whole words of 8 bytes.
const PARTS: [u16; 3] = [4096, 4096, 802];

/// An answer to a request of the pool's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Says {
    Done,
    /// The back answers that it has done what was asked, and has done nothing.
    Kept,
    Refused,
    /// A part is done, by statuses and a number that do not fit.
    Part,
    Nothing,
}

impl<P: Platform, T: Transport> Vif<'_, P, T> {
    /// Makes the pool grow and shrink, with such answers. Pages that the front could not remove
    /// stay mapped, and the front keeps them unchanged.
    pub fn pool(&mut self, adds: Says, dels: Says) -> Result<()> {
        let Some(control) = &mut self.control else { return Err("the front has no control ring".into()) };
        control.says = [adds, dels];
        self.long_frames()?;
        let enough = match (adds, dels) {
            (Says::Nothing, _) => [1, 0],
            // Pages that are not named yet go without a DEL.
            (Says::Refused, _) => [20, 0],
            (_, Says::Refused | Says::Part) => [4, 3],
            _ => [4, 1],
        };
        let until = self.now() + PATIENCE.as_nanos() as u64;
        while let asked = self.control.as_ref().map_or([0; 2], |control| control.asked)
            && (asked[0] < enough[0] || asked[1] < enough[1])
        {
            if self.now() > until || self.state()? != XenbusState::Connected {
                return Err(format!("the front asks for {} ADDs, {} DELs", asked[0], asked[1]).into());
            }
            self.serve_control()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        self.look_at_pieces();
        self.long_frames()
    }

    /// The network stack holds frames; the last of them is followed by a fault.
    pub fn fault_behind_frames(&mut self) -> Result<()> {
        self.pool(Says::Done, Says::Done)?;
        self.put_long_frame()?;
        self.pieces.extend(std::mem::take(&mut self.maps).into_values());
        self.look_at_pieces();
        self.rx(&[at(0, 0, 4097)])?;
        self.is_seen()
    }

    /// Pages that are still mapped after all DELs, when it closes.
    pub fn keep_pool(&mut self) -> Result<()> {
        self.pool(Says::Done, Says::Kept)?;
        self.begin_close()?;
        self.kept = Some(self.sum());
        Ok(())
    }

    /// From now on the fragments must not change.
    fn look_at_pieces(&mut self) {
        self.shown = Some((self.pieces.len(), self.sum_of(self.pieces.len())));
    }

    /// Some long frames. The stack holds each that has its pages for a while.
    pub fn long_frames(&mut self) -> Result<()> {
        for _ in 0..FRAMES {
            self.put_long_frame()?;
            self.publish_rx();
            // Others are there for the next.
            for _ in 0..100 {
                self.serve_control()?;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// One, which the front is not shown yet.
    fn put_long_frame(&mut self) -> Result<()> {
        // No other's of the last minute, also of another case.
        let number = (self.now() / 1_000_000) as u16;
        for (k, len) in PARTS.into_iter().enumerate() {
            let req = self.take_rx()?;
            let page = self.page(req.gref)?;
            if k == 0 && !page.copy_in(0, &head(number)) {
                return Err("a page has no room for headers".into());
            }
            let flags = if k + 1 < PARTS.len() { RXF_MORE_DATA } else { 0 };
            self.put_rx(RxResponse { id: req.id, ..at(0, flags, len as i16) }.to_words());
        }
        Ok(())
    }

    fn page(&mut self, gref: u32) -> Result<&Map<P>> {
        if !self.maps.contains_key(&gref) {
            self.maps.insert(gref, map(self.p, self.device.id(), gref, Access::ReadWrite)?);
        }
        self.maps.get(&gref).ok_or("a page is not mapped".into())
    }

    /// Answers what is asked on the control ring.
    pub fn serve_control(&mut self) -> Result<()> {
        let Some(mut control) = self.control.take() else { return Ok(()) };
        let served = self.serve(&mut control);
        self.control = Some(control);
        served
    }

    fn serve(&mut self, control: &mut Control<P>) -> Result<()> {
        while control.ring.load(Word::ReqProd) != control.taken {
            let req = CtrlRequest::from_words(control.ring.read::<4>(control.taken));
            control.taken = control.taken.wrapping_add(1);
            let (status, data) = match CtrlType::from_raw(req.msg_type) {
                Some(CtrlType::GetGrefMappingSize) => (CtrlStatus::Success, ROOM),
                Some(CtrlType::AddGrefMapping) => match self.about_pages(control, 0, &req)? {
                    Some(answer) => answer,
                    None => continue,
                },
                Some(CtrlType::DelGrefMapping) => match self.about_pages(control, 1, &req)? {
                    Some(answer) => answer,
                    None => continue,
                },
                _ => (CtrlStatus::NotSupported, 0),
            };
            control.ring.write::<3>(control.given, CtrlResponse::to(&req, status, data).to_words());
            control.given = control.given.wrapping_add(1);
            control.ring.store(Word::RspProd, control.given);
            control.ring.full_fence();
            self.p.events().notify(&control.chan);
        }
        control.ring.store(Word::ReqEvent, control.taken.wrapping_add(1));
        Ok(())
    }

    /// ADD, `which` 0, or DEL, 1. None: no answer.
    fn about_pages(
        &mut self,
        control: &mut Control<P>,
        which: usize,
        req: &CtrlRequest,
    ) -> Result<Option<(CtrlStatus, u32)>> {
        let [_, list, n] = req.data;
        let n = (n as usize).min(GREF_LIST_MAX);
        let (says, keeps) = match n > POOL_PART {
            true => (Says::Done, false),
            false => (control.says[which], control.says[1] != Says::Done),
        };
        control.asked[which] += u32::from(n <= POOL_PART);
        let list = match &mut control.list {
            Some(list) => list,
            none => none.insert(map(self.p, self.device.id(), list, Access::ReadWrite)?),
        };
        let mut gone = Vec::new();
        for k in 0..n {
            let mut entry = [0; GrefEntry::SIZE];
            let named = list.copy_out(k * GrefEntry::SIZE, &mut entry);
            let gref = GrefEntry::from_bytes(entry).gref;
            match which {
                0 if keeps => _ = self.page(gref)?,
                0 => {}
                // Of those that stay none is written to again: a use of theirs shows.
                _ => match self.maps.remove(&gref) {
                    Some(page) if keeps && page.copy_in(0, &MARK) => self.pieces.push(page),
                    page => gone.extend(page),
                },
            }
            let status: u16 = match says {
                Says::Part => [0, 2, u16::MAX][k % 3],
                _ => 0,
            };
            let status_at = k * GrefEntry::SIZE + GrefEntry::STATUS_OFFSET;
            if !named || !list.copy_in(status_at, &status.to_le_bytes()) {
                return Err("a list is longer than its page".into());
            }
        }
        self.p.peer().unmap(&mut gone);
        Ok(match says {
            Says::Done | Says::Kept => Some((CtrlStatus::Success, n as u32)),
            Says::Refused => Some((CtrlStatus::InvalidParameter, 0)),
            Says::Part if control.asked[which].is_multiple_of(2) => Some((CtrlStatus::Success, u32::MAX)),
            Says::Part => Some((CtrlStatus::Success, n.div_ceil(2) as u32)),
            Says::Nothing => None,
        })
    }
}

/// Headers of a part of a packet, by its number, from 10.9.0.1 to 10.9.0.2: neither its first part
/// nor its last, which do not come. Who puts it together holds it. It is TCP's: no other's stays in
/// its pages.
fn head(number: u16) -> [u8; 34] {
    let mut head = [0; 34];
    head[..6].fill(0xff);
    head[6..12].copy_from_slice(&[0x00, 0x16, 0x3e, 0x00, 0x00, 0xff]);
    head[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0x00]);
    let len = PARTS.iter().sum::<u16>() - 14;
    head[16..18].copy_from_slice(&len.to_be_bytes());
    head[18..20].copy_from_slice(&number.to_be_bytes());
    // More of it follows; this is at byte 8.
    head[20..24].copy_from_slice(&[0x20, 0x01, 64, 6]);
    head[26..34].copy_from_slice(&[10, 9, 0, 1, 10, 9, 0, 2]);
    let words = head[14..34].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    head[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    head
}
