//! The stack that a back needs to connect, where a front made its lists against the library's sort:
//! in an order in which `sort_unstable` recurses as deep as it can.
//!
//! ```text
//!   front: staging list, keys --> entries in another order --> back: step, measured
//!   the test: index page of a data ring -----'
//! ```
//! A kernel's stack has 16 KiB, of which the callers of a back need some. What is measured is below
//! the test's own frames: a pattern there is gone as deep as the stack was used.

use super::*;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::ToString;
use pregrant::GrantRef;
use pregrant::net::path::data_ring::keys::{INDEX_REF, active_key as data_ring_active};
use pregrant::net::path::staging::keys::active_key as staging_active;
use pregrant::net::path::staging::wanted::Buffers;
use pregrant::platform::{Access, GrantPool};
use pregrant::shm::SharedBytes;
use pregrant::wire::data_ring::{ORDER_MAX, REFS, RING_ORDER};
use pregrant::wire::staging::{ENTRIES_PER_PAGE, StagingEntry};

/// The most that a connection may need.
const BYTES_MAX: usize = 8192;
/// Length of a staging buffer, the shortest that a back offers.
const BUFFER: usize = 64;
const NO_PAGE: &str = "a page or an entry of a list is missing";

/// Ranks of items in an order made against the sort (`build.rs`), two bytes each.
const AGAINST_SORT_512: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/against_sort_512"));
const AGAINST_SORT_4096: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/against_sort_4096"));
const AGAINST_SORT_32767: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/against_sort_32767"));

fn ranks(order: &'static [u8]) -> impl ExactSizeIterator<Item = usize> {
    order.as_chunks().0.iter().map(|bytes| usize::from(u16::from_le_bytes(*bytes)))
}

/// Measures the stack below the caller's frame that a call needs.
#[inline(never)]
fn measured<T>(call: impl FnOnce() -> T) -> (T, usize) {
    // SAFETY: it fills what is below its own frame.
    unsafe { shim::pk_test_stack_fill() };
    let came = call();
    // SAFETY: it reads what is below its own frame.
    let used = unsafe { shim::pk_test_stack_used() };
    (came, used)
}

impl Ends {
    /// Connects the back to what the front wrote, and measures that. Returns the bytes of stack.
    #[inline(never)]
    fn connect_measured(&mut self) -> Result<usize> {
        let (stepped, used) = measured(|| self.back_step());
        stepped.map(|()| used)
    }

    /// Closes from the back's end, which unmaps everything.
    #[inline(never)]
    fn close_back(&mut self) -> Result<()> {
        let Self { back, host, back_bus, .. } = self;
        if pregrant_selftest_back_close(back, host, back_bus, None) {
            Ok(())
        } else {
            Err("the back does not close")
        }
    }

    /// True if a key in the back's directory says that it accepted what TX asks for.
    #[inline(never)]
    fn accepted(&self, key: &str) -> bool {
        self.back_bus.own.lock().get(key).is_some_and(|value| value == "1" || value == "tx")
    }

    /// The reference in a key of the front.
    #[inline(never)]
    fn named(&self, key: &str) -> Result<GrantRef> {
        let keys = self.front_bus.own.lock();
        let gref = keys.get(key).and_then(|text| text.parse().ok());
        gref.map(GrantRef).ok_or("the front names no page")
    }
}

/// Closes both ends, and checks that nothing is left.
#[inline(never)]
fn close(mut ends: Ends) -> Result<()> {
    ends.front.close(&mut ends.front_bus, None).map_err(|_| "the front does not close")?;
    ends.steps()?;
    let table = ends.table.clone();
    drop(ends);
    if table.lock().left() == 0 { Ok(()) } else { Err("grants are left") }
}

/// A front that asks for path `staging` with `buffers` TX buffers, or for `copy` with none.
#[inline(never)]
fn asking(buffers: u32) -> Result<Ends> {
    let path = if buffers > 0 { PathName::Staging } else { PathName::Copy };
    let trial = Trial {
        path,
        data_len: BUFFER as u32,
        buffers: 0,
        len: BUFFER,
        share: 1,
        in_pieces: false,
        in_place: false,
    };
    let mut config = trial.config()?;
    config.staging = Buffers { rx: None, buffers, ..config.staging };
    let mut ends = Ends::new(whole(), config, BUFFER, false, arena());
    for _ in 0..STEPS {
        ends.back_step()?;
        ends.front.step(&ends.guest, &mut ends.front_bus).map_err(|_| "the front's step")?;
        if ends.front_bus.own.lock().contains_key("tx-ring-ref") {
            return Ok(ends);
        }
    }
    Err("the front names no rings")
}

/// Connects with a TX list of `entries` entries. `order`: against the sort; None: the front's own.
#[inline(never)]
fn staging(entries: usize, order: Option<&'static [u8]>) -> Result<usize> {
    let mut ends = asking(entries as u32)?;
    if let Some(order) = order {
        let mut lists = Vec::new();
        for k in 0..entries.div_ceil(ENTRIES_PER_PAGE) {
            let gref = ends.named(&format!("tx-data-ref{k}"))?;
            lists.push(*ends.table.lock().page(gref).ok_or(NO_PAGE)?);
        }
        reorder(&mut ends.table.lock(), &lists, order)?;
    }
    let used = ends.connect_measured()?;
    if !ends.accepted(&staging_active(0, 1)) {
        return Err("the back does not accept a list in another order");
    }
    close(ends)?;
    Ok(used)
}

/// Gives a staging list, in these pages, another order: entry `i` gets the buffer of rank
/// `order[i]`. Then gives the grants other pages: a mapping must be one range.
#[inline(never)]
fn reorder(table: &mut Table, lists: &[usize], order: &'static [u8]) -> Result<()> {
    let at = |k: usize| {
        let page = lists.get(k / ENTRIES_PER_PAGE).ok_or(NO_PAGE)?;
        Ok((page + k % ENTRIES_PER_PAGE * StagingEntry::SIZE) as *mut [u8; StagingEntry::SIZE])
    };
    let mut buffers = Vec::new();
    for k in 0..ranks(order).len() {
        // SAFETY: an entry in a page that the front granted and keeps.
        buffers.push(StagingEntry::from_bytes(unsafe { at(k)?.read() }));
    }
    if !buffers.is_sorted_by_key(|entry| (entry.gref, entry.offset)) {
        return Err("the front's own list is in no order");
    }
    let (mut from, mut seen) = (Vec::new(), BTreeSet::new());
    for entry in &buffers {
        let page = *table.page(GrantRef(entry.gref)).ok_or(NO_PAGE)?;
        if from.last() != Some(&page) {
            from.push(page);
        }
    }
    let mut from = from.into_iter();
    for (k, rank) in ranks(order).enumerate() {
        let entry = *buffers.get(rank).ok_or(NO_PAGE)?;
        // SAFETY: as above.
        unsafe { at(k)?.write(StagingEntry { id: k as u16, ..entry }.to_bytes()) };
        if seen.insert(entry.gref) {
            *table.page(GrantRef(entry.gref)).ok_or(NO_PAGE)? = from.next().ok_or(NO_PAGE)?;
        }
    }
    Ok(())
}

/// Connects with a data ring of as many pages as an index can name, in an order against the sort.
#[inline(never)]
fn data_ring() -> Result<usize> {
    let mut ends = asking(0)?;
    let mut grefs = vec![GrantRef::NONE; 1 << ORDER_MAX];
    let area = ends.guest.alloc(HOST, Access::ReadWrite, &mut grefs).map_err(|_| NO_PAGE)?;
    let mut index_gref = [GrantRef::NONE];
    let index = ends.guest.alloc(HOST, Access::ReadWrite, &mut index_gref).map_err(|_| NO_PAGE)?;
    let mut is_written = index.store_u32(RING_ORDER, ORDER_MAX);
    for (k, rank) in ranks(AGAINST_SORT_512).enumerate() {
        let gref = *grefs.get(rank).ok_or(NO_PAGE)?;
        is_written &= index.store_u32(REFS + 4 * k, gref.0);
        let page = area.page(k).map_err(|_| NO_PAGE)? as usize;
        *ends.table.lock().page(gref).ok_or(NO_PAGE)? = page;
    }
    let [GrantRef(gref)] = index_gref;
    directory::write(&ends.front_bus.own, INDEX_REF, &gref.to_string());
    let used = ends.connect_measured()?;
    if !is_written || !ends.accepted(&data_ring_active(0, 1)) {
        return Err("the back does not accept a data ring");
    }
    ends.close_back()?;
    for region in [area, index] {
        ends.guest.release(region).map_err(|_| "the back keeps a data ring")?;
    }
    close(ends)?;
    Ok(used)
}

/// Tests all lists.
#[inline(never)]
pub fn play() -> Result<()> {
    let of = [
        staging(4096, None)?,
        staging(4096, Some(AGAINST_SORT_4096))?,
        staging(32_767, Some(AGAINST_SORT_32767))?,
        data_ring()?,
    ];
    let [ordered, some, most, index] = of;
    log::info(
        NO_DEVICE,
        format_args!(
            "selftest of the stack: a back connects in {ordered} bytes with 4096 staging buffers, in {some} and {most} \
             with 4096 and 32767 in an order against a sort, in {index} with such a data ring"
        ),
    );
    if of.iter().all(|used| *used <= BYTES_MAX) { Ok(()) } else { Err("a connection needs too much stack") }
}
