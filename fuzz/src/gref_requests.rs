//! The guest asks to keep pages mapped and to let go of them, with lists that it changes, grants
//! that it ends, queues that check late; and the back dies in between, at worst after it wrote a
//! table that does not count yet, and is taken up by another one.
//!
//! Beside it stands a set of references for each queue. Each request is answered once, those of one
//! queue in their order; a list without a fault is done, all of it, and any other one changes
//! nothing; what a queue's table has afterwards, and what is mapped, is the set.

use crate::guest_pages::{GuestPages, Right, bytes_of};
use crate::tape::{self, Tape};
use pregrant::net::path::gref_mapping::exchange::GrefExchange;
use pregrant::net::path::gref_mapping::page::{GREF_PAGE_BYTES, GrefPage};
use pregrant::net::path::gref_mapping::requests::{Due, GrefRequests, UNANSWERED_MAX};
use pregrant::net::path::gref_mapping::table::GrefTable;
use pregrant::platform::local::{LocalDomain, LocalMap, Pages};
use pregrant::shm::SharedBytes;
use pregrant::wire::netif_ctrl::{CtrlRequest, CtrlStatus, GrefEntry};
use pregrant::{GrantRef, PAGE_SIZE};
use pregrant_testkit::two_domains::{GUEST, TwoDomains};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Largest number of operations of one input.
const OPS: usize = 200;
/// Pages that lists may name; some are lists.
const PAGES: usize = 16;
const QUEUES: usize = 2;
const LIMIT: usize = 10;
const ROOM: usize = 14;

/// A request that has no answer yet.
struct Asked {
    request: CtrlRequest,
    /// The list when the request was taken. None: it could not be read.
    list: Option<Vec<GrefEntry>>,
    /// A grant has changed since.
    stale: bool,
}

struct Game {
    domains: TwoDomains,
    pages: GuestPages,
    grefs: GrefRequests<LocalDomain>,
    exchanges: Vec<Arc<GrefExchange<LocalMap>>>,
    tables: Vec<GrefTable<LocalMap>>,
    kept: Vec<Pages>,
    versions: Vec<u32>,
    asked: Vec<Asked>,
    /// For each queue the mapped references, and whether they are writable.
    model: [BTreeMap<u32, bool>; QUEUES],
    next_id: u16,
}

pub fn gref_requests(data: &[u8]) {
    let turn = |game: &mut Game, tape: &mut Tape<'_>| {
        game.play(tape);
        true
    };
    tape::play(data, OPS, |_| Game::new(), turn, Game::close);
}

impl Game {
    fn new() -> Self {
        let domains = TwoDomains::new();
        let mut pages = GuestPages::new(&domains, PAGES, Right::Write);
        pages.kept = true;
        let kept: Vec<_> = (0..QUEUES).map(|_| Pages::new(GREF_PAGE_BYTES.div_ceil(PAGE_SIZE))).collect();
        let (grefs, exchanges, tables) = back(&kept);
        let versions = vec![0; QUEUES];
        let (asked, model) = (Vec::new(), Default::default());
        Self { domains, pages, grefs, exchanges, tables, kept, versions, asked, model, next_id: 0 }
    }

    fn play(&mut self, tape: &mut Tape<'_>) {
        match tape.below(8) {
            0..=2 => self.ask(tape),
            3 => {
                let right = tape.one_of(&[Right::None, Right::Read, Right::Write, Right::Stranger]);
                self.pages.grant(&self.domains, tape.below(PAGES), right);
                self.asked.iter_mut().for_each(|asked| asked.stale = true);
            }
            4 => self.check(tape.below(QUEUES)),
            5 => self.turn(),
            6 => self.die(tape.below(2) == 0),
            _ => {
                (0..QUEUES).for_each(|q| self.check(q));
                (0..20).for_each(|_| self.turn());
                (0..QUEUES).for_each(|q| self.check(q));
                (0..20).for_each(|_| self.turn());
            }
        }
        self.compare();
    }

    /// Writes a list, and asks.
    fn ask(&mut self, tape: &mut Tape<'_>) {
        let page = tape.below(4);
        let n = tape.below(7);
        let entry = |tape: &mut Tape<'_>| {
            let odd = tape.one_of(&[0, 0, 0, 0, 0, 0, 1, 2]);
            let gref = if odd == 1 { u32::from(tape.u8()) } else { self.pages.gref(tape.below(PAGES)) };
            let flags = tape.one_of(&[0, 0, 1, 1]) | if odd == 2 { tape.u16() } else { 0 };
            GrefEntry { gref, flags, status: tape.u16() }
        };
        let entries: Vec<_> = (0..n).map(|_| entry(tape)).collect();
        for (k, entry) in entries.iter().enumerate() {
            let at = page * PAGE_SIZE + k * GrefEntry::SIZE;
            assert!(self.pages.region.copy_in(at, &entry.to_bytes()));
        }
        let n = tape.one_of(&[n as u32, n as u32, n as u32, 512, 513, u32::MAX]);
        let queue = tape.one_of(&[0, 0, 1, 1, QUEUES as u32, u32::MAX]);
        let msg_type = tape.one_of(&[8, 9, 9, 9, 10, 10]);
        let gref = if tape.below(16) == 0 { u32::from(tape.u8()) } else { self.pages.gref(page) };
        let request = CtrlRequest { id: self.next_id, msg_type, data: [queue, gref, n] };
        self.next_id = self.next_id.wrapping_add(1);
        if !self.grefs.can_take() {
            assert_eq!(self.asked.len(), UNANSWERED_MAX);
            return;
        }
        let answer = self.grefs.take(&self.domains.host, GUEST, &request);
        let list = self.list(&request);
        self.asked.push(Asked { request, list, stale: false });
        if let Some((status, data)) = answer {
            self.answered(Due { request, status, data, changed: None });
        }
    }

    /// The list of a request, if its page is the back's to read, and for DEL to write.
    fn list(&self, request: &CtrlRequest) -> Option<Vec<GrefEntry>> {
        let [_, gref, n] = request.data;
        let write = request.msg_type == 10;
        let memory = crate::guest_pages::granted(&self.domains, gref, 0, PAGE_SIZE).filter(|_| gref != 0)?;
        let fits = (1..=512).contains(&n) && (!write || self.is_right(gref, true));
        fits.then(|| {
            memory.as_chunks().0.iter().take(n as usize).map(|e| GrefEntry::from_bytes(*e)).collect()
        })
    }

    /// Whether the back may map this for reading, or for writing.
    fn is_right(&self, gref: u32, write: bool) -> bool {
        if write {
            self.pages.page_of(gref).is_some()
        } else {
            crate::guest_pages::granted(&self.domains, gref, 0, 1).is_some()
        }
    }

    /// The worker of a queue applies what it gets.
    fn check(&mut self, q: usize) {
        self.exchanges[q].apply(&mut self.tables[q]);
    }

    fn turn(&mut self) {
        self.grefs.begin_turn();
        while let Some(due) = self.grefs.due(&self.domains.host, GUEST) {
            if let Some((queue, version)) = due.changed {
                self.versions[queue] = version;
            }
            self.answered(due);
        }
    }

    /// An answer: it is due, and right.
    fn answered(&mut self, due: Due) {
        let at =
            self.asked.iter().position(|asked| asked.request == due.request).expect("it was asked, and once");
        let Asked { request, list, stale } = self.asked.remove(at);
        let queue = request.data[0] as usize;
        let first = self.asked[..at].iter().all(|earlier| earlier.request.data[0] as usize != queue);
        assert!(first || due.changed.is_none(), "what is done is done in order");
        let total: usize = self.model.iter().map(BTreeMap::len).sum();
        let good = due.status == CtrlStatus::Success;
        assert!(good || due.status == CtrlStatus::InvalidParameter);
        if queue >= QUEUES {
            return assert!(!good);
        }
        match request.msg_type {
            8 => assert!(good && due.data as usize <= LIMIT && due.data as usize >= self.model[queue].len()),
            9 => {
                let had = &self.model[queue];
                let list = list.unwrap_or_default();
                let refs: BTreeSet<u32> = list.iter().map(|e| e.gref).collect();
                let sound = !list.is_empty()
                    && refs.len() == list.len()
                    && list.iter().all(|e| e.gref != 0 && e.flags < 2 && !had.contains_key(&e.gref));
                assert!(!good || sound && had.len() + list.len() <= LIMIT && total + list.len() <= ROOM);
                let others = self.asked.iter().any(|asked| asked.request.msg_type == 9);
                let fits = had.len() + list.len() <= LIMIT && total + list.len() <= ROOM;
                if sound
                    && fits
                    && !stale
                    && !others
                    && list.iter().all(|e| self.is_right(e.gref, e.flags == 0))
                {
                    assert!(good, "a good list is refused: {list:?}");
                }
                if good {
                    self.model[queue].extend(list.iter().map(|e| (e.gref, e.flags == 0)));
                }
                assert_eq!(due.data as usize, if good { list.len() } else { 0 });
            }
            _ => {
                assert!(!good || list.is_some());
                assert!(good || list.is_none() || stale, "a good list is refused");
                // Refused at the end, its pages are gone all the same.
                let changes = good || due.changed.is_some();
                let list = list.unwrap_or_default();
                let statuses: Vec<u16> = list
                    .iter()
                    .map(|e| if changes && self.model[queue].remove(&e.gref).is_some() { 0 } else { 2 })
                    .collect();
                if good {
                    assert_eq!(due.data as usize, statuses.iter().filter(|s| **s == 0).count());
                    if let Some(page) = self.pages.page_of(request.data[1]) {
                        let bytes =
                            bytes_of(&self.pages.region, page * PAGE_SIZE, list.len() * GrefEntry::SIZE);
                        let written: Vec<u16> =
                            bytes.as_chunks().0.iter().map(|e| GrefEntry::from_bytes(*e).status).collect();
                        assert_eq!(written, statuses);
                    }
                }
            }
        }
    }

    /// Pages that no one works at are as the model has them; and nothing else is mapped.
    fn compare(&mut self) {
        for q in 0..QUEUES {
            if self.asked.iter().any(|asked| asked.request.data[0] as usize == q) {
                continue;
            }
            self.check(q);
            let table = &self.tables[q];
            assert_eq!(table.len(), self.model[q].len());
            for (&gref, &writable) in &self.model[q] {
                let page =
                    table.locate(GrantRef(gref)).and_then(|place| table.at(place)).expect("it was added");
                assert_eq!(page.writable, writable);
            }
        }
        if self.asked.is_empty() {
            let mapped: usize = self.model.iter().map(BTreeMap::len).sum();
            assert_eq!((self.domains.xen.counts().mapped, self.grefs.pages()), (mapped, mapped));
            assert_eq!(self.grefs.room() + mapped, ROOM);
            assert!(!self.grefs.can_move());
        }
    }

    /// The back dies, perhaps after it wrote a table and before that was valid; another one resumes
    /// what was kept.
    fn die(&mut self, in_a_commit: bool) {
        if in_a_commit {
            self.grefs.begin_turn();
            let _ = self.grefs.due(&self.domains.host, GUEST);
        }
        let taken: Vec<_> = self.asked.iter().map(|asked| asked.request).collect();
        (self.grefs, self.exchanges, self.tables) = back(&self.kept);
        assert_eq!(self.domains.xen.counts().mapped, 0, "a dead back has nothing mapped");
        self.grefs.resume(&self.domains.host, GUEST, &self.versions).expect("memory");
        (0..QUEUES).for_each(|q| self.check(q));
        for (q, model) in self.model.iter_mut().enumerate() {
            let table = &self.tables[q];
            let mut gone = Vec::new();
            for (&gref, &writable) in model.iter() {
                if table.locate(GrantRef(gref)).is_none() {
                    gone.push((gref, writable));
                }
            }
            model.retain(|gref, _| gone.iter().all(|(lost, _)| lost != gref));
            assert_eq!(table.len(), model.len(), "an entry that was not added");
            let pages = &self.pages;
            let lost = |&(gref, writable): &(u32, bool)| writable && pages.page_of(gref).is_none();
            let readable = |gref| crate::guest_pages::granted(&self.domains, gref, 0, 1).is_some();
            assert!(gone.iter().all(|e| lost(e) || !readable(e.0)), "it could be mapped, and is not");
        }
        // Lists are read again.
        for at in 0..self.asked.len() {
            self.asked[at].list = self.list(&self.asked[at].request);
        }
        self.grefs.take_again(&self.domains.host, GUEST, &taken);
    }

    fn close(mut self) {
        for _ in 0..UNANSWERED_MAX {
            (0..QUEUES).for_each(|q| self.check(q));
            (0..20).for_each(|_| self.turn());
        }
        assert!(self.asked.is_empty(), "requests without an answer");
        self.compare();
        let Self { domains, pages, grefs, exchanges, tables, .. } = self;
        drop((grefs, exchanges, tables));
        pages.close(&domains);
        domains.assert_empty();
    }
}

type Back = (GrefRequests<LocalDomain>, Vec<Arc<GrefExchange<LocalMap>>>, Vec<GrefTable<LocalMap>>);

fn back(kept: &[Pages]) -> Back {
    let exchanges: Vec<_> = kept.iter().map(|_| Arc::new(GrefExchange::default())).collect();
    let mut grefs = GrefRequests::new(exchanges.clone(), LIMIT, ROOM).expect("memory");
    for (q, memory) in kept.iter().enumerate() {
        grefs.keep(q, GrefPage::new(memory.clone()).expect("long enough"));
    }
    (grefs, exchanges, kept.iter().map(|_| GrefTable::new(LIMIT).expect("memory")).collect())
}
