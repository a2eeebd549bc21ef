//! Types without a value: for a path without memory at the front, without claims, or without
//! refusals. Lists of all paths cost nothing for these.

use super::back::RequestClaims;
use super::flagged_rx::{Answers, FlaggedPath, Received};
use super::front::FrontPath;
use super::keys::KeyPlace;
use super::path_name::PathName;
use super::path_refusal::PathRefusal;
use crate::error::{PeerFault, PlatformError};
use crate::net::front::regions::{Granted, Region};
use crate::net::front::rx_answers::Part;
use crate::platform::Platform;
use crate::port::{Offload, Sink};
use crate::wire::netif::RxResponse;
use alloc::string::String;
use alloc::vec::Vec;
use core::convert::Infallible;
use core::fmt;
use core::marker::PhantomData;

/// It is never refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoRefusal {}

/// No memory at the front.
pub struct NoMemory<P>(Infallible, PhantomData<fn() -> P>);

/// No request is its own.
#[derive(Clone, Copy, Default, Debug)]
pub struct NoClaims;

impl RequestClaims for NoClaims {}

impl fmt::Display for NoRefusal {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

impl PathRefusal for NoRefusal {
    fn line(&self, _: KeyPlace<'_>) -> String {
        match *self {}
    }
}

impl<P: Platform> FrontPath<P> for NoMemory<P> {
    const NAME: PathName = PathName::Copy;

    fn ids(&self) -> u32 {
        match self.0 {}
    }
    fn slot_bytes(&self) -> usize {
        match self.0 {}
    }
    fn carries_all(&self) -> bool {
        match self.0 {}
    }
    fn bytes(&self) -> &Region<P> {
        match self.0 {}
    }
    fn start(&self, _: u16) -> usize {
        match self.0 {}
    }
    fn grant(&mut self, _: &P, _: u16) -> Result<u32, PlatformError> {
        match self.0 {}
    }
    fn into_memory(self) -> Vec<Granted<P>> {
        match self.0 {}
    }
}

impl<P: Platform> FlaggedPath<P> for NoMemory<P> {
    const NAME: PathName = PathName::Copy;
    const FLAGS: u16 = 0;

    fn recv_run(&mut self, _: Answers<'_, P>, _: RxResponse, _: &mut impl Sink) -> Result<u32, PeerFault> {
        match self.0 {}
    }
    fn recv_long(&mut self, _: (&[Part], Offload), _: &mut impl Sink) -> Result<Received, PeerFault> {
        match self.0 {}
    }
    fn copy(&self, _: &P, _: &Part, _: usize, _: &mut [u8]) -> Result<bool, PeerFault> {
        match self.0 {}
    }
    fn into_memory(self) -> Vec<Granted<P>> {
        match self.0 {}
    }
}
