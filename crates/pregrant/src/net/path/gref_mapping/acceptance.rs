//! Accepts a table of mapped pages for each queue of a front with a control ring. The guest fills
//! it by control requests.

use super::LIMIT_MAX;
use super::back::GrefMappingPath;
use super::exchange::GrefExchange;
use super::requests::QUEUES_MAX;
use super::table::GrefTable;
use crate::net::path::acceptance::{Accept, Accepted, Accepting, Lost, Said};
use crate::net::path::any_back::AnyPath;
use crate::platform::Platform;
use alloc::boxed::Box;
use alloc::sync::Arc;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct AcceptGrefMapping {
    /// Entries of a table at most; 0: there is none.
    pub limit: usize,
}

impl<P: Platform> Accept<P> for AcceptGrefMapping {
    fn accept(
        &mut self,
        cx: &mut Accepting<'_, P>,
        queue: usize,
        _said: Said<'_>,
    ) -> Result<Accepted<P>, Lost> {
        let limit = self.limit.min(LIMIT_MAX);
        if cx.front.ctrl.is_none() || limit == 0 || queue >= QUEUES_MAX {
            return Ok(Accepted::NONE);
        }
        let exchange = Arc::new(GrefExchange::default());
        let path =
            |table| Some(AnyPath::GrefMapping(GrefMappingPath::with_exchange(table, Arc::clone(&exchange))));
        Ok(Accepted { tx: path(Some(Box::new(GrefTable::new(limit)))), rx: path(None), ..Accepted::NONE })
    }
}
