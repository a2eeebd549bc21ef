//! Any path's memory at the front, as one type, made from the list `paths!`: nothing to add here.

use super::PathName;
use super::copy::front::OrdinaryPages;
use super::flagged_rx::FlaggedPath;
use super::front::FrontPath;
use super::negotiation::Negotiation;
use crate::net::features::BackFeatures;
use crate::net::front::regions::Granted;
use crate::platform::Platform;
use crate::port::Source;
use crate::wire::netif::RxResponse;
use alloc::vec::Vec;

macro_rules! any_front {
    ({} $($(#[$doc:meta])* $path:ident = $module:ident, $name:literal;)*) => {
        /// The memory that a queue's frames can travel in, matched once for a run of frames.
        #[repr(u8)] // a tag that is a byte: it is matched for each answer of TX
        pub enum AnyFrontPath<P: Platform> {
            $($(#[$doc])* $path(<super::$module::$path as Negotiation>::Front<P>),)*
        }

        impl<P: Platform> AnyFrontPath<P> {
            /// [`FrontPath::into_pages`].
            ///
            /// # Errors
            /// It has none.
            pub fn into_pages(self) -> Result<OrdinaryPages<P>, Self> {
                match self {
                    $(Self::$path(path) => FrontPath::<P>::into_pages(path).map_err(Self::$path),)*
                }
            }
        }

        /// RX memory that responses name by their flags.
        pub enum AnyFlaggedPath<P: Platform> {
            $($(#[$doc])* $path(<super::$module::$path as Negotiation>::Flagged<P>),)*
        }

        impl<P: Platform> AnyFlaggedPath<P> {
            /// Flags by which a response may name memory, whether a queue has it or not.
            pub const FLAGS: u16 =
                0 $(| <<super::$module::$path as Negotiation>::Flagged<P> as FlaggedPath<P>>::FLAGS)*;

            /// Those of them that say so whether a queue has it or not.
            pub const ALWAYS: u16 =
                0 $(| <<super::$module::$path as Negotiation>::Flagged<P> as FlaggedPath<P>>::ALWAYS)*;
        }
    };
}

paths!(any_front {});

fn accounts_of<P: Platform, F: FrontPath<P>>(_: &F) -> bool {
    F::ACCOUNTS
}

fn name_of<P: Platform, F: FrontPath<P>>(_: &F) -> PathName {
    F::NAME
}

impl<P: Platform> AnyFrontPath<P> {
    /// [`FrontPath::NAME`].
    pub fn name(&self) -> PathName {
        with_path!(self, path => name_of(path))
    }

    /// [`FrontPath::ids`].
    pub fn ids(&self) -> u32 {
        with_path!(self, path => FrontPath::<P>::ids(path))
    }

    /// [`FrontPath::serve_ids`].
    pub fn serve_ids(&mut self, n: u32) -> bool {
        with_path!(self, path => FrontPath::<P>::serve_ids(path, n))
    }

    /// [`FrontPath::slot_bytes`].
    #[inline(always)]
    pub fn slot_bytes(&self) -> usize {
        with_path!(self, path => FrontPath::<P>::slot_bytes(path))
    }

    /// [`FrontPath::carries_all`].
    #[inline(always)]
    pub fn carries_all(&self) -> bool {
        with_path!(self, path => FrontPath::<P>::carries_all(path))
    }

    /// [`FrontPath::of_one_slot`].
    pub fn of_one_slot(&self) -> bool {
        with_path!(self, path => FrontPath::<P>::of_one_slot(path))
    }

    /// [`FrontPath::takes_first`].
    #[inline(always)]
    pub fn takes_first(&self) -> bool {
        with_path!(self, path => FrontPath::<P>::takes_first(path))
    }

    /// [`FrontPath::holds_heads`].
    #[inline(always)]
    pub fn holds_heads(&self) -> bool {
        with_path!(self, path => FrontPath::<P>::holds_heads(path))
    }

    /// [`FrontPath::head`].
    #[inline(always)]
    pub fn head(&mut self, id: u16, frame: &impl Source) {
        with_path!(self, path => FrontPath::<P>::head(path, id, frame));
    }

    /// [`FrontPath::most`].
    pub fn most(&self) -> u64 {
        with_path!(self, path => FrontPath::<P>::most(path))
    }

    /// [`FrontPath::ACCOUNTS`].
    pub fn accounts(&self) -> bool {
        with_path!(self, path => accounts_of(path))
    }

    /// [`FrontPath::is_offered`].
    pub fn is_offered(&self, back: &BackFeatures) -> bool {
        with_path!(self, path => FrontPath::<P>::is_offered(path, back))
    }

    /// [`FrontPath::go_live`].
    pub fn go_live(&mut self, back: &BackFeatures) {
        with_path!(self, path => FrontPath::<P>::go_live(path, back));
    }

    /// [`FrontPath::buffers`].
    pub fn buffers(&self) -> u32 {
        with_path!(self, path => FrontPath::<P>::buffers(path))
    }

    /// [`FrontPath::buffers_rest`].
    pub fn buffers_rest(&self) -> bool {
        with_path!(self, path => FrontPath::<P>::buffers_rest(path))
    }

    /// [`FrontPath::is_sent_on`].
    pub fn is_sent_on(&self) -> bool {
        with_path!(self, path => FrontPath::<P>::is_sent_on(path))
    }

    /// [`FrontPath::pages`].
    #[inline]
    pub fn pages(&self) -> Option<&OrdinaryPages<P>> {
        with_path!(self, path => FrontPath::<P>::pages(path))
    }

    /// [`FrontPath::pages_mut`].
    pub fn pages_mut(&mut self) -> Option<&mut OrdinaryPages<P>> {
        with_path!(self, path => FrontPath::<P>::pages_mut(path))
    }

    /// [`FrontPath::into_memory`].
    pub fn into_memory(self) -> Vec<Granted<P>> {
        with_path!(self, path => FrontPath::<P>::into_memory(path))
    }
}

fn of_flagged<P: Platform, F: FlaggedPath<P>>(_: &F) -> (PathName, u16) {
    (F::NAME, F::FLAGS)
}

#[inline(always)]
fn fetches<P: Platform, F: FlaggedPath<P>>(_: &F) -> bool {
    F::FETCHES
}

impl<P: Platform> AnyFlaggedPath<P> {
    /// [`FlaggedPath::NAME`].
    pub fn name(&self) -> PathName {
        with_flagged!(self, path => of_flagged(path).0)
    }

    /// [`FlaggedPath::FLAGS`].
    #[inline(always)]
    pub fn flags(&self) -> u16 {
        with_flagged!(self, path => of_flagged(path).1)
    }

    /// [`FlaggedPath::FETCHES`].
    #[inline(always)]
    pub fn fetches(&self) -> bool {
        with_flagged!(self, path => fetches(path))
    }

    /// [`FlaggedPath::can_have`].
    pub fn can_have(&self, rsp: &RxResponse) -> bool {
        with_flagged!(self, path => FlaggedPath::<P>::can_have(path, rsp))
    }

    /// [`FlaggedPath::into_memory`].
    pub fn into_memory(self) -> Vec<Granted<P>> {
        with_flagged!(self, path => FlaggedPath::<P>::into_memory(path))
    }
}
