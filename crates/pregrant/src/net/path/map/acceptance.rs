//! Mapping each frame's pages: for any front, where the operator wants it.

use super::back::MapPath;
use crate::net::path::acceptance::{Accept, Accepted, Accepting, Lost, Said};
use crate::net::path::any_back::AnyPath;
use crate::platform::Platform;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct AcceptMap {
    /// The operator wants it.
    pub wanted: bool,
}

impl<P: Platform> Accept<P> for AcceptMap {
    fn accept(
        &mut self,
        _cx: &mut Accepting<'_, P>,
        _queue: usize,
        _said: Said<'_>,
    ) -> Result<Accepted<P>, Lost> {
        let tx = self.wanted.then(|| AnyPath::Map(MapPath::default()));
        Ok(Accepted { tx, ..Accepted::NONE })
    }
}
