//! Staging lists, as a connecting back takes them: all of a list or nothing.
//!
//! What a front may do: give any list. One that is wrong is refused with a line that names its key; nothing of it stays mapped.

use super::Vif;
use crate::net::back::refusal::ListRefusal;
use crate::net::features::{DataKeys, DataRequest};
use crate::net::path::staging::list::{self as staging_list, ListFault};
use crate::net::path::{StagedBuffers, StagingPath};
use crate::platform::{Access, PeerMem, Platform};
use crate::shm::SharedBytes;
use crate::units::{DomId, PAGE_SIZE};
use crate::wire::staging::ENTRIES_PER_PAGE;
use crate::xenbus::KeyError;
use crate::xenbus::refusal::TooManyPages;
use alloc::string::String;

impl<P: Platform> Vif<P> {
    /// The staging path of one direction, if its list was accepted; how many entries that has, and pages.
    pub(super) fn staging(
        &mut self,
        p: &P,
        (queue, dir): (usize, &'static str),
        data: &DataRequest,
        first_id: u16,
        left: usize,
    ) -> (Option<StagingPath<P>>, u16, usize) {
        let acc = if dir == "tx" { Access::ReadOnly } else { Access::ReadWrite };
        let why = match data {
            DataRequest::None => return (None, 0, 0),
            DataRequest::Bad { key, value, expected } => {
                let seen = value.as_ref().map(String::as_bytes);
                ListRefusal::Key(KeyError::new(key, seen, expected, self.of))
            }
            DataRequest::Keys(keys) => match accept(p, self.of, keys, acc, first_id, left) {
                Ok((buffers, n)) => {
                    let pages = buffers.map.len() / PAGE_SIZE;
                    return (Some(StagingPath::new(buffers)), n, pages);
                }
                Err(why) => why,
            },
        };
        self.refused.push((queue, dir, why));
        (None, 0, 0)
    }
}

/// Reads, judges and maps one direction's list: all of it or nothing.
#[allow(clippy::type_complexity)]
fn accept<P: Platform>(
    p: &P,
    of: DomId,
    data: &DataKeys,
    acc: Access,
    first_id: u16,
    left: usize,
) -> Result<(StagedBuffers<<P::Peer as PeerMem>::Map>, u16), ListRefusal> {
    // A ring of one page needs 256 buffers, and one list page has 512 entries: what stands in further pages would be
    // mapped for nothing.
    let Some(&r) = data.list_refs.first() else { return Err(ListRefusal::Fault(ListFault::Empty)) };
    let page = p.peer().map(of, &[r], Access::ReadOnly).map_err(ListRefusal::Map)?;
    let entries = staging_list::read(&page, ENTRIES_PER_PAGE);
    let list = staging_list::judge(&entries, first_id, data.len).map_err(ListRefusal::Fault)?;
    let asked = list.refs.len();
    if asked > left {
        return Err(ListRefusal::TooManyPages(TooManyPages { asked, left }));
    }
    let map = p.peer().map(of, &list.refs, acc).map_err(ListRefusal::Map)?;
    let buffers = StagedBuffers {
        map,
        place: list.place,
        len: data.len.buffer_bytes(),
        copy_only: data.len.copy_only(),
    };
    Ok((buffers, entries.len() as u16))
}
